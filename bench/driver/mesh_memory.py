"""Memory of a rank when a mesh divides layers or sequences: against theory, and one process."""
import contextlib

from .memory import MIB, PARAMETERS, UNIT, peak
from . import children
from .report import Bar, Row
from .turns import Group

# Every other layer of bench/large_mlp.h is divided by its outputs, and the next one by its inputs.
LAYERS = [f'"blocks.{i} = {"colwise" if i % 2 == 0 else "rowwise"}"' for i in range(12)]
TENSOR = ("parallel.tensor=2", f"parallel.tensor_plan=[{', '.join(LAYERS)}]")
# Theoretical bytes of parameters, gradients and AdamW's state, all fp32, which 2 tensor ranks
# divide; with shards, also of two layers that are in use.
SIDES = {
    "tensor 2": (2, "shm", TENSOR, 16 * PARAMETERS / 2),
    "tensor 2, fsdp over 2": (4, "fsdp", (*TENSOR, "parallel.shard=2", "backend.fsdp.base=mpi"),
                              16 * PARAMETERS / 4 + 2 * 4 * UNIT / 2),
}
CONTEXT = 4  # ranks


def layers(context):
    rows = []
    for name, (ranks, backend, options, theory) in SIDES.items():
        command = context.launch(ranks, backend, *context.bench("memory"), options=options)
        ours = peak(context, command, ranks)
        runtime = peak(context, command, ranks, width=64)
        rows.append(Row(f"MLP 201M, {name} / theory + 5 %", "MiB", [ours], [1.05 * theory / MIB],
                        Bar("<=", 1.0), less_is_better=True, faster=False,
                        extra={"of_theory": round(ours * MIB / theory, 4)},
                        limit=[theory / MIB + runtime],
                        limit_name="theory, and the peak of such ranks with layers of width 64"))
    return rows


def sequences(context):
    """The first figure of a group is the loss of a short sequence, which must not depend on ranks."""
    program = [*context.bench("long_sequence"), "--control"]
    alone = lambda path: [[*program, path]]
    divided = lambda path: [context.launch(CONTEXT, "shm", *program, path,
                                           options=(f"parallel.context={CONTEXT}",))]
    losses, peaks = {}, {}
    for name, ranks, command, parts in (("whole", 1, alone, 1), ("part", 1, alone, CONTEXT),
                                        ("divided", CONTEXT, divided, 1)):
        group = Group(f"sequence-{name}", context.folder, ranks, command)
        with contextlib.closing(group):
            losses[name] = group.turn("short", 1)[2]
            group.turn("long", parts)
            peaks[name] = max(group.figures)
    if abs(losses["whole"] - losses["divided"]) > 1e-5:
        raise children.Failed(f"mesh-memory: the losses differ: {losses}")
    return [Row(f"activations of 8192 tokens, context {CONTEXT} / one process", "MiB",
                [peaks["divided"]], [peaks["whole"]],
                Bar("<=", 1.1 / CONTEXT, text=f"ratio <= 1/{CONTEXT} + 10 %"),
                less_is_better=True, faster=False, limit=[peaks["part"]],
                limit_name=f"one process with a sequence of 8192 / {CONTEXT} tokens")]


def mesh_memory(context):
    """Peak memory of an MLP of 201M over tensor ranks, and of 8192 tokens over 4 context ranks."""
    return layers(context) + sequences(context)
