"""The full loop of a training program, one process, in turns with Accelerate: in fp32, and in bf16 by the flag alone."""
import contextlib
import os

from . import children
from .report import Bar, Row
from .turns import Group

STEPS = {"mlp": 200, "conv-net": 40, "gpt": 40}  # per turn: whole epochs


def race(context, threads, model="mlp", precision="no"):
    """Batches per second of each side, one value per round."""
    steps = STEPS[model]
    program, script = context.bench("loop"), context.script("loop_in_turns.py")
    with contextlib.ExitStack() as stack:
        def start(name, *command):
            command = ["env", f"OMP_NUM_THREADS={threads}", *command, "--control"]
            return stack.enter_context(contextlib.closing(
                Group(f"{name}-{model}-{threads}", context.folder, 1, lambda path: [[*command, path]])))

        ours = start("loop-ours", *program, "-o", f"training.mixed_precision={precision}", "--model", model)
        python = start("loop-python", context.python, script, "--model", model, "--precision", precision)
        if ours.parameters != python.parameters:
            raise children.Failed("loop: the models differ in their parameters")
        sides = {"ours": (ours, "ours"), "default": (python, "default"), "fused": (python, "fused")}
        losses = {name: group.turn(mode, 2 * steps)[2] for name, (group, mode) in sides.items()}
        if model == "mlp":
            kernels = start("loop-kernels", *program, "--kernels")
            kernels.turn("kernels", 2 * steps)
            sides["kernels"] = (kernels, "kernels")
        # The order of samples differs between the sides, and so do the losses.
        if max(losses.values()) > 1.2 * min(losses.values()):
            raise children.Failed(f"loop: the losses differ too much: {losses}")
        speed = {name: [] for name in sides}
        for round_number in range(context.rounds_or(9)):
            order = list(sides) if round_number % 2 == 0 else list(sides)[::-1]
            for name in order:
                group, mode = sides[name]
                speed[name].append(steps / group.turn(mode, steps)[0])
    return speed


def loop(context):
    """Loader, accumulate(2), clip, AdamW, schedule over an MLP, one process, against accelerate."""
    context.need_python("accelerate")
    rows = []
    for threads in sorted({1, os.cpu_count()}):
        speed = race(context, threads)
        title = f"batches, {threads} thread{'s' if threads > 1 else ''} / accelerate"
        limit = {"limit": speed["kernels"], "limit_name": "LibTorch's kernels of these steps alone"}
        rows.append(Row(title + ", AdamW", "1/s", speed["ours"], speed["default"], Bar(">=", 2),
                        **limit))
        rows.append(Row(title + ", fused AdamW", "1/s", speed["ours"], speed["fused"], **limit))
    return rows


def precision(context):
    """The same loop with training.mixed_precision = "bf16" and nothing else, conv net and GPT, against accelerate."""
    context.need_python("accelerate")
    rows = []
    for model in ("conv-net", "gpt"):
        speed = race(context, 1, model, "bf16")
        title = f"{model} in bf16, batches, 1 thread / accelerate"
        rows.append(Row(title + ", AdamW", "1/s", speed["ours"], speed["default"], Bar(">=", 1)))
        rows.append(Row(title + ", fused AdamW", "1/s", speed["ours"], speed["fused"]))
    return rows
