"""A model that a mesh of two ranks divides against the whole one in one process."""
import contextlib
import statistics

from . import children
from .report import Bar, Row
from .turns import Group

# The model, the mesh, and the longest step of two ranks, as a part of one rank's.
KINDS = {
    "products": ("parallel.tensor=2", 0.62),
    "attention": ("parallel.context=2", None),
}
BACKENDS = ("shm", "gloo_cpu", "mpi")
# Of the divided layers, which exchange in so many chunks while they compute; against the same without.
OVERLAP = "parallel.overlap_chunks=4"
OVERLAPPED = {f"{name}-overlapped": name for name in ("shm", "gloo_cpu")}


def mesh(context):
    """An MLP of width 2048 divided over 2 ranks; a GPT whose sequences of 1024 are; one thread each."""
    rows = []
    for kind, (size, bar) in KINDS.items():
        program = context.bench("mesh")
        seconds = {}
        overlapped = OVERLAPPED if "tensor" in size else {}
        with contextlib.ExitStack() as stack:
            groups = {}
            for name in ("alone", *BACKENDS, *overlapped):
                words = lambda path, k=kind: [*program, "--control", path, "--model", k]
                backend, options = overlapped.get(name, name), (size, OVERLAP) if name in overlapped else (size,)
                make = words if name == "alone" else lambda path, b=backend, words=words, o=options: context.launch(
                    2, b, *words(path), options=o)
                groups[name] = stack.enter_context(contextlib.closing(
                    Group(f"mesh-{kind}-{name}", context.folder, 1 if name == "alone" else 2,
                          lambda path, make=make: [make(path)])))
            losses = {name: [group.turn("train", 1)[2] for _ in range(3)] for name, group in groups.items()}
            for name, seen in losses.items():
                if any(abs(a - b) > 1e-4 * abs(b) for a, b in zip(seen, losses["alone"])):
                    raise children.Failed(f"mesh: the losses of {kind} differ: {losses}")
            for round_number in range(context.rounds_or(7)):
                first = round_number % len(groups)
                order = list(groups)[first:] + list(groups)[:first]
                for name in order:
                    steps = 1 if context.quick else 3
                    taken, _, _ = groups[name].turn("train", steps)
                    seconds.setdefault(name, []).append(1e3 * taken / steps)
        for name in BACKENDS:
            ratio = statistics.median(a / b for a, b in zip(seconds[name], seconds["alone"]))
            rows.append(Row(f"{kind}: 2 ranks {name} / 1 rank", "ms", seconds[name], seconds["alone"],
                            Bar(">=", 1 / bar) if bar else None, less_is_better=True,
                            extra={"part_of_one_ranks_step": round(ratio, 3)}))
        for name, backend in overlapped.items():
            rows.append(Row(f"{kind}: 2 ranks {name} / {backend}", "ms", seconds[name], seconds[backend],
                            less_is_better=True))
    return rows
