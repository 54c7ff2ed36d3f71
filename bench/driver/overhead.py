"""The Accelerator's overhead per step."""
from . import children
from .report import Bar, Row


def overhead(context):
    """A step through the Accelerator against a plain LibTorch loop, Linear 8x8, batch 4."""
    output = children.run([*context.bench("overhead"), "--rounds",
                           str(context.rounds_or(15))], context.folder, 600)
    hand, ours = {}, {}
    for line in output.splitlines():
        optimizer, without, through = line.split()
        hand.setdefault(optimizer, []).append(float(without))
        ours.setdefault(optimizer, []).append(float(through))
    return [Row(f"a step with {name}, ours / plain LibTorch", "us", ours[name], hand[name],
                Bar("<=", 5, "difference", "own cost <= 5 us"), less_is_better=True)
            for name in hand]
