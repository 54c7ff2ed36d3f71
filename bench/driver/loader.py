"""Epochs over 60000x784 floats in batches of 64, one process, loading only."""
from . import children
from .report import Bar, Row

LIMIT = 300
SAMPLES = 60000


def speeds(context, command, epochs):
    """Samples per second for each order."""
    lines = children.run([*command, str(epochs)], context.folder, LIMIT).split("\n")
    return {name: SAMPLES / float(seconds)
            for name, seconds in (line.split() for line in lines if line)}


def loader(context):
    """Our data loader against torch's Python DataLoader: 60000x784 floats, batch 64, one process."""
    context.need_python("torch")
    sides = {"ours": context.bench("loader"),
             "torch": [context.python, context.script("loader_epochs.py")]}
    epochs = 1 if context.quick else 3
    results = {name: [] for name in sides}
    for round_number in range(context.rounds_or(7)):
        order = list(sides) if round_number % 2 == 0 else list(sides)[::-1]
        for name in order:
            results[name].append(speeds(context, sides[name], epochs))
    return [Row(f"{order}, samples / torch DataLoader", "1/s",
                [speed[order] for speed in results["ours"]],
                [speed[order] for speed in results["torch"]], Bar(">=", 2.5))
            for order in ("sequential", "shuffled")]
