"""Training beyond memory: what offload and activation checkpointing cost and save."""
import contextlib
import os

from . import children
from .report import Bar, Row
from .turns import Group

LAYERS, BATCH, SEQUENCE, WIDTH = 24, 4, 128, 256  # of bench/activations
MIB = 1 << 20


def group(context, stack, name, program, options, *words):
    settings = [word for option in options for word in ("-o", option)]
    return stack.enter_context(contextlib.closing(Group(
        name, context.folder, 1,
        lambda path: [[*context.bench(program), *settings, *words, "--control", path]])))


def activations(context):
    """Steps of a GPT of 24 layers, one process, with and without activation checkpointing."""
    steps = 1 if context.quick else 4
    with contextlib.ExitStack() as stack:
        sides = {name: group(context, stack, f"activations-{name}", "activations",
                             options)
                 for name, options in (("with", ['memory.activation_checkpointing=["blocks.*"]']),
                                       ("without", []))}
        losses = {name: side.turn("steps", 3)[2] for name, side in sides.items()}
        if losses["with"] != losses["without"]:
            raise children.Failed(f"activations: the losses differ: {losses}")
        retained = {name: side.turn("retained", 1)[2] for name, side in sides.items()}
        seconds = {name: [] for name in sides}
        for round_number in range(context.rounds_or(9)):
            for name in list(sides)[::1 if round_number % 2 == 0 else -1]:
                seconds[name].append(sides[name].turn("steps", steps)[0])
    inputs = LAYERS * BATCH * SEQUENCE * WIDTH * 4 / MIB
    limit = inputs + retained["without"] / LAYERS
    return [Row("gpt of 24 layers, a step with activation checkpointing / without", "s",
                seconds["with"], seconds["without"], Bar("<=", 1.35), less_is_better=True,
                faster=False),
            Row("memory kept for backward / the units' inputs and one unit", "MiB",
                [retained["with"]], [limit], Bar("<=", 1.0), less_is_better=True, faster=False,
                extra={"without_mib": round(retained["without"], 1)})]


def offload(context):
    """An AdamW step, 50M parameters, one process: state on disk, in memory, and the disk alone."""
    steps = 1 if context.quick else 3
    with contextlib.ExitStack() as stack:
        folder = os.path.join(context.folder, "offload")
        os.makedirs(folder, exist_ok=True)
        places = {"disk": ["backend.fsdp.offload.device=nvme",
                           f"backend.fsdp.offload.nvme_path={folder}"],
                  "cpu": ["backend.fsdp.offload.device=cpu"], "memory": []}
        places["loop"] = places["disk"]
        places["loop in backward"] = [*places["disk"], "training.optimizer_in_backward=true"]
        sides = {name: group(context, stack, f"offload-{name}", "offload",
                             ["backend.use=fsdp", "backend.fsdp.base=gloo_cpu", *options],
                             "--folder", folder)
                 for name, options in places.items()}
        turns = {name: (side, "loop" if name.startswith("loop") else "steps")
                 for name, side in sides.items()}
        for side, mode in turns.values():
            side.turn(mode, 2)
        turns["raw"] = (sides["memory"], "raw")
        turns["ordered"] = (sides["memory"], "ordered")
        seconds = {name: [] for name in turns}
        for round_number in range(context.rounds_or(9)):
            for name in list(turns)[::1 if round_number % 2 == 0 else -1]:
                side, mode = turns[name]
                seconds[name].append(side.turn(mode, steps)[0] / steps)
    return [Row("AdamW 50M, a step with its state on disk / the disk alone", "s",
                seconds["disk"], seconds["raw"], Bar(">=", 0.7), less_is_better=True,
                limit=seconds["ordered"],
                limit_name="each layer is read, updated by AdamW's kernel, then written"),
            Row("AdamW 50M, a step with its state offloaded to host memory / resident", "s",
                seconds["cpu"], seconds["memory"], Bar(">=", 0.8), less_is_better=True),
            Row("a loop of 50M, state on disk, optimizer in backward / after it", "s",
                seconds["loop in backward"], seconds["loop"], None, less_is_better=True)]
