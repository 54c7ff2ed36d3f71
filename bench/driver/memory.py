"""Peak memory of a rank that trains an MLP of 201 million parameters, above an empty process."""
import os
import shutil

from . import children
from .report import Bar, Row

LIMIT = 900
WIDTH = 4096
UNIT = WIDTH * WIDTH + WIDTH  # elements of one layer
PARAMETERS = 12 * UNIT
RANKS = 2
# Theoretical bytes per rank of each stage (parameters, gradients, AdamW's state, all fp32) + 5 %.
LIMITS = {
    "fsdp": 1.05 * (16 * PARAMETERS / RANKS + 2 * 4 * UNIT),
    "ZeRO-3": 1.05 * (16 * PARAMETERS / RANKS + 2 * 4 * UNIT),
    "ZeRO-1": 1.05 * (8 * PARAMETERS + 8 * PARAMETERS / RANKS),
    "ZeRO-2": 1.05 * (4 * PARAMETERS + 12 * PARAMETERS / RANKS + 4 * UNIT),
}
MIB = 1 << 20


def fresh_folder(context):
    folder = os.path.join(context.folder, "memory")
    shutil.rmtree(folder, ignore_errors=True)
    os.mkdir(folder)
    return folder


def highest(folder, ranks=RANKS):
    """MiB of the rank that used the most."""
    figures = []
    for rank in range(ranks):
        with open(os.path.join(folder, str(rank))) as file:
            base, high = map(int, file.read().split())
            figures.append((high - base) / 1024)
    return max(figures)


def peak(context, command, ranks=RANKS, width=WIDTH):
    folder = fresh_folder(context)
    children.run([*command, "--width", str(width), "--report", folder], context.folder, LIMIT)
    return highest(folder, ranks)


def python_peak(context):
    """Runs both ranks at once, as torchrun would."""
    folder = fresh_folder(context)
    words = [context.python, context.script("peak_memory.py"), "--world", str(RANKS), "--meet",
             os.path.join(folder, "meet"), "--report", folder, "--rank"]
    with open(os.path.join(folder, "log"), "w") as log:
        other = children.start([*words, "1"], context.folder, children.environment(), log)
        try:
            children.run([*words, "0"], context.folder, LIMIT)
        finally:
            children.end(other)
    return highest(folder)


def memory(context):
    """Peak memory of fsdp and ZeRO on a 201M MLP, against the stages' theory and torch's FSDP2."""
    context.need_python("torch")
    program = context.bench("memory")
    sides = {"fsdp": ("fsdp", ("backend.fsdp.base=mpi",))}
    for stage in (1, 2, 3):
        sides[f"ZeRO-{stage}"] = ("deepspeed_like", ("backend.deepspeed_like.base=mpi",
                                                     f"backend.deepspeed_like.stage={stage}"))
    torch = python_peak(context)
    rows = []
    for name, (backend, options) in sides.items():
        ours = peak(context, context.launch(RANKS, backend, *program, options=options))
        limit = LIMITS[name] / MIB
        rows.append(Row(f"{name} / theory + 5 %", "MiB", [ours], [limit], Bar("<=", 1.0),
                        less_is_better=True, faster=False))
        rows.append(Row(f"{name} / torch FSDP2", "MiB", [ours], [torch],
                        Bar("<=", 1.0) if name in ("fsdp", "ZeRO-3") else None,
                        less_is_better=True, faster=False))
    return rows
