"""Checkpoints of a 201M MLP and AdamW's state on 2 ranks: against the disk and Accelerate."""
import contextlib
import os
import shutil

from . import children
from .report import Bar, Row
from .startup import accelerate_command
from .turns import Group

WORLD = 2
MIB = 1 << 20
BETWEEN = 60  # s, from one checkpoint to the next
SIDES = {"replicate": ("gloo_cpu", ()), "fsdp": ("fsdp", ("backend.fsdp.base=gloo_cpu",))}


def open_group(context, stack, side, folder, steps, *options):
    os.makedirs(folder, exist_ok=True)
    backend, base = SIDES[side]
    words = [*context.bench("checkpoint"), "--folder", folder, "--steps", str(steps),
             "--control"]
    return stack.enter_context(contextlib.closing(Group(
        f"checkpoint-{side}", context.folder, WORLD, lambda path: [context.launch(
            WORLD, backend, *words, path, options=(*base, *options))])))


def open_accelerate(context, stack, side, folder):
    os.makedirs(folder)
    words = accelerate_command(context, "checkpoint.py", "--folder", folder, "--control")
    return stack.enter_context(contextlib.closing(Group(
        f"accelerate-{side}", context.folder, WORLD, lambda path: [[*words, path]])))


def file_sizes(folder):
    return [os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(folder)
            for name in names]


def extra_memory(group, mode):
    """Peak growth of the rank that grew most, in MiB: of all memory and of anonymous memory."""
    grown = []
    for turn in (mode, mode + "-anonymous"):
        group.turn(turn, 1)
        grown.append(max(group.figures))
    return grown


def measure(context, side, rounds, barred):
    folder = os.path.join(context.folder, "checkpoints")
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        ours = open_group(context, stack, side, os.path.join(folder, "ours"), 2)
        peer = open_accelerate(context, stack, side, os.path.join(folder, "peer"))
        if ours.parameters != peer.parameters:
            raise children.Failed("checkpoint: the models differ in their parameters")
        groups = {"ours": ours, "accelerate": peer}
        for group in groups.values():
            group.turn("steps", 2)
        # The first save and load measure memory and put both sides' files into the page cache.
        saving = extra_memory(ours, "save")
        ours.turn("clear", 1)
        for group in groups.values():
            group.turn("keep", 1)
        sizes = file_sizes(os.path.join(folder, "ours", "kept"))
        loading = {name: extra_memory(group, "load") for name, group in groups.items()}
        speed = {"save": [], "raw": []}
        seconds = {"ours": [], "accelerate": [], "read": []}
        # Every rank loads all of its replica, or its shards.
        read = sum(sizes) // (1 if side == "replicate" else WORLD)
        ours.turn("read", read)  # makes the memory
        for round_number in range(rounds):
            order = 1 if round_number % 2 == 0 else -1
            for mode in list(speed)[::order]:
                ours.turn("clear", 1)
                taken = ours.turn(mode, sum(sizes) // WORLD)[0]
                speed[mode].append(sum(sizes) / MIB / taken)
            ours.turn("clear", 1)
            for name in list(groups)[::order]:
                seconds[name].append(groups[name].turn("load", 1)[0])
            seconds["read"].append(ours.turn("read", read)[0])

    def memory(title, grown, limit, bar, **extra):
        extra["anonymous_mib"] = [round(grown[1], 1)]
        return Row(f"{side} {title}", "MiB", [grown[0]], [limit], bar, less_is_better=True,
                   faster=False, extra=extra)

    shard = max(sizes) / MIB
    within = Bar("<=", 1.0) if barred else None
    return [
        Row(f"{side} durable save / plain write and fsync of {sum(sizes) / MIB:.0f} MiB", "MiB/s",
            speed["save"], speed["raw"], Bar(">=", 0.85) if barred else None),
        Row(f"{side} load / accelerate's load_state", "s", seconds["ours"], seconds["accelerate"],
            Bar(">=", 3.0) if barred else None, less_is_better=True, limit=seconds["read"],
            limit_name="the same processes read as many bytes of the files into existing memory"),
        memory("extra memory of a save / the largest file", saving, shard, within),
        memory("extra memory of a load / the largest file", loading["ours"], shard, within),
        memory("extra memory of a load / accelerate's", loading["ours"], loading["accelerate"][0],
               None, peer_anonymous_mib=round(loading["accelerate"][1], 1))]


def checkpoint(context):
    """Save, load and extra memory of a 201M model and AdamW, 2 ranks, against disk and accelerate."""
    context.need_python("torch", "accelerate")
    rounds = context.rounds_or(11)
    return (measure(context, "replicate", rounds, True) +
            measure(context, "fsdp", max(1, rounds // 2), False))


def measure_stall(context, side, rounds, steps, bar):
    """Windows of equally many steps, alternately with and without a checkpoint."""
    folder = os.path.join(context.folder, "stall")
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        group = open_group(context, stack, side, folder, steps, "checkpoint.async=true",
                           f"checkpoint.dir={os.path.join(folder, 'training')}",
                           f"checkpoint.every={2 * steps}", "checkpoint.total_limit=1")
        # A checkpoint is due after the first step of every second window.
        group.turn("steps", 2 * steps - 1)
        with_one, without, grown = [], [], []
        for _ in range(rounds + 1):
            with_one.append(group.turn("steps", steps)[0])
            grown.append(max(group.figures))
            without.append(group.turn("steps", steps)[0])
        made = os.listdir(os.path.join(folder, "training"))
        if not any(name.startswith("checkpoint_") for name in made):
            raise children.Failed(f"stall: no checkpoint was written: {made}")
        share = sum(file_sizes(os.path.join(folder, "training"))) / MIB / WORLD
    # Compares each window with its neighbors, to cancel drift of the machine; the first is warm-up.
    between = [(a + b) / 2 for a, b in zip(without, without[1:])]
    limit = 0.035 * BETWEEN
    return [Row(f"{side} {steps} steps with a checkpoint / without", "s", with_one[1:], between,
                Bar("<=", limit, "difference", f"3.5 % of a minute: <= {limit:g} s") if bar
                else None, less_is_better=True,
                extra={"first_costs": round(with_one[0] - without[0], 3)}),
            Row(f"{side} extra memory of an asynchronous save / the rank's share", "MiB",
                [max(grown)], [share], None, less_is_better=True, faster=False)]


def stall(context):
    """What an asynchronous save costs concurrent training, 201M model, 2 ranks."""
    steps = 4 if context.quick else 12
    rounds = context.rounds_or(4)
    return (measure_stall(context, "replicate", rounds, steps, True) +
            measure_stall(context, "fsdp", max(1, rounds // 2), steps, False))
