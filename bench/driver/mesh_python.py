"""Divided layers and sequences against PyTorch on gloo, over 2 ranks of one thread each."""
import contextlib
import os

from . import children
from .report import Bar, Row
from .turns import Group, together

# The mesh, and the modes of python/mesh_in_turns.py; the first has the bar.
KINDS = {"tensor": ("parallel.tensor=2", ("default", "fused")),
         "context": ("parallel.context=2", ("fsdp2", "ddp"))}
PEERS = {"default": "DTensor, AdamW", "fused": "DTensor, fused AdamW",
         "fsdp2": "torch's ring, FSDP2", "ddp": "torch's ring, DDP"}
BACKENDS = ("shm", "gloo_cpu")
# Processes of which each trains on one of the two sequences that both ranks divide: the same work
# without any communication.
HALVES = ("half", "other-half")
COMPARED = 20  # first steps, whose losses must agree
APART = 1e-5
STEPS = {"tensor": 8, "context": 6}  # per turn


def open_groups(context, kind, stack):
    size, _ = KINDS[kind]
    program = context.bench("mesh")

    def ours(backend):
        return lambda path: [context.launch(2, backend, *program, "--control", path, "--model", kind,
                                            options=(size,))]

    def python(path):
        meet = os.path.join(context.folder, "meet-" + kind)
        return [[context.python, context.script("mesh_in_turns.py"), "--model", kind, "--control",
                 path, "--rank", str(rank), "--world", "2", "--meet", meet] for rank in range(2)]

    made = {backend: (2, ours(backend)) for backend in BACKENDS} | {"python": (2, python)}
    if kind == "context":
        alone = lambda path: [[*program, "--control", path, "--model", "context_half"]]
        made |= {name: (1, alone) for name in HALVES}
    return {name: stack.enter_context(contextlib.closing(
        Group(f"mesh-python-{kind}-{name}", context.folder, world, command)))
        for name, (world, command) in made.items()}


def largest_difference(kind, sides):
    """Of the losses of any two sides; raises Failed if it is too large. Warms up as well."""
    losses = {name: [group.turn(mode, 1)[2] for _ in range(COMPARED)]
              for name, (group, mode) in sides.items()}
    apart = max(max(step) - min(step) for step in zip(*losses.values()))
    if not apart <= APART:
        raise children.Failed(f"mesh-python: the losses of {kind} are {apart:.2g} apart, more than "
                              f"{APART:g}: {losses}")
    return apart


def rows_of(context, kind):
    steps = 2 if context.quick else STEPS[kind]
    modes = KINDS[kind][1]
    with contextlib.ExitStack() as stack:
        groups = open_groups(context, kind, stack)
        sides = {backend: (groups[backend], "train") for backend in BACKENDS}
        sides |= {mode: (groups["python"], mode) for mode in modes}
        apart = largest_difference(kind, sides)
        context.say(f"{kind}: the losses of {COMPARED} steps are at most {apart:.2g} apart")
        halves = [groups[name] for name in HALVES if name in groups]
        for group in halves:
            group.turn("train", COMPARED)
        taken, apart_ms = {name: [] for name in sides}, []
        for round_number in range(context.rounds_or(9)):
            first = round_number % len(sides)
            order = list(sides)[first:] + list(sides)[:first]
            for name in order if round_number % 2 == 0 else order[::-1]:
                group, mode = sides[name]
                taken[name].append(1e3 * group.turn(mode, steps)[0] / steps)
            if halves:
                apart_ms.append(1e3 * together(halves, "train", steps) / steps)
    return [Row(f"{kind}: 2 ranks {backend} / {PEERS[mode]}", "ms", taken[backend], taken[mode],
                Bar(">=", 1.5) if mode == modes[0] else None, less_is_better=True,
                extra={"largest_difference_of_losses": apart}, limit=apart_ms or None,
                limit_name="two processes with a sequence each that do not communicate")
            for backend in BACKENDS for mode in modes]


def mesh_python(context):
    """Steps of GPTs whose layers or sequences are divided over 2 ranks, against PyTorch on gloo."""
    context.need_python("torch")
    return [row for kind in KINDS for row in rows_of(context, kind)]
