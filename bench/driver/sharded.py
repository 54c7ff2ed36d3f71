"""Training steps per second with sharded parameters, against PyTorch's FSDP2 and our replicas."""
import contextlib
import os

from . import children
from .report import Bar, Row
from .steps import STEPS, WARM_UP
from .turns import Group, together

# The same units as FSDP2's in python/train_in_turns.py.
UNITS = {"mlp": ("backend.fsdp.unit_join_below=0",),
         "gpt": ("backend.fsdp.units=types", "backend.fsdp.unit_types=Block")}
BARS = {"mlp": 4.0, "gpt": 1.5}


def open_groups(context, model, stack):
    program = context.bench("steps")

    def group(name, world, make):
        return stack.enter_context(contextlib.closing(
            Group(f"{name}-{model}", context.folder, world, make)))

    def ours(name, backend, *options):
        return group(name, 2, lambda path: [context.launch(
            2, backend, *program, "--model", model, "--control", path, options=options)])

    def python(path):
        meet = os.path.join(context.folder, "meet-sharded-" + model)
        return [[context.python, context.script("train_in_turns.py"), "--model", model, "--control",
                 path, "--rank", str(rank), "--world", "2", "--meet", meet, "--modes",
                 "fsdp2,fsdp2-fused"] for rank in range(2)]

    groups = {base: ours(f"replicas-{base}", base) for base in ("mpi", "shm")}
    for base in ("mpi", "gloo_cpu", "shm"):
        groups[f"fsdp {base}"] = ours(f"fsdp-{base}", "fsdp", f"backend.fsdp.base={base}",
                                      *UNITS[model])
    groups["zero3 mpi"] = ours("zero3", "deepspeed_like", "backend.deepspeed_like.base=mpi",
                               "backend.deepspeed_like.stage=3")
    groups["zero2 mpi"] = ours("zero2", "deepspeed_like", "backend.deepspeed_like.base=mpi",
                               "backend.deepspeed_like.stage=2")
    groups["python"] = group("fsdp2", 2, python)
    apart = [group(name, 1, lambda path: [[*program, "--model", model, "--control", path]])
             for name in ("sharded-single", "sharded-other")]
    return groups, apart


def rows_of(context, model):
    context.need_python("torch")
    steps = STEPS[model]
    with contextlib.ExitStack() as stack:
        groups, apart = open_groups(context, model, stack)
        sides = {name: (group, "ours") for name, group in groups.items() if name != "python"}
        sides.update({mode: (groups["python"], mode) for mode in ("fsdp2", "fsdp2-fused")})
        losses = {}
        for name, (group, mode) in sides.items():
            first = group.turn(mode, 1, None)[2]
            losses[name] = (first, group.turn(mode, WARM_UP, None)[2])
        for name in sides:
            for mine, right in zip(losses[name], losses["fsdp2"]):
                if abs(mine - right) > 1e-3 * abs(right):
                    raise children.Failed(f"{model}: the losses differ: {losses}")
        together(apart, "ours", WARM_UP)
        speed = {name: [] for name in (*sides, "apart")}
        for round_number in range(context.rounds_or(7)):
            order = list(sides)[round_number % len(sides):] + list(sides)[:round_number % len(sides)]
            for name in order if round_number % 2 == 0 else order[::-1]:
                group, mode = sides[name]
                speed[name].append(steps / group.turn(mode, steps, None)[0])
            speed["apart"].append(steps / together(apart, "ours", steps))

    def row(title, ours, peer, bar=None, limit=False):
        return Row(f"{model} {title}", "steps/s", speed[ours], speed[peer], bar and Bar(">=", bar),
                   limit=speed["apart"] if limit else None,
                   limit_name="two processes at once that do not communicate")

    return [row("fsdp mpi / torch FSDP2", "fsdp mpi", "fsdp2", BARS[model]),
            row("fsdp mpi / torch FSDP2, fused AdamW", "fsdp mpi", "fsdp2-fused"),
            row("fsdp gloo_cpu / torch FSDP2", "fsdp gloo_cpu", "fsdp2"),
            row("ZeRO-3 mpi / torch FSDP2", "zero3 mpi", "fsdp2"),
            row("ZeRO-2 mpi / torch FSDP2", "zero2 mpi", "fsdp2"),
            row("fsdp mpi / our replicas over mpi", "fsdp mpi", "mpi",
                0.9 if model == "gpt" else None, limit=True),
            row("fsdp shm / torch FSDP2", "fsdp shm", "fsdp2"),
            row("fsdp shm / our replicas over shm", "fsdp shm", "shm",
                0.95 if model == "gpt" else None, limit=True),
            row("ZeRO-2 mpi / our replicas over mpi", "zero2 mpi", "mpi")]


def mlp(context):
    """fsdp and ZeRO on the MLP, against PyTorch's FSDP2."""
    return rows_of(context, "mlp")


def gpt(context):
    """fsdp and ZeRO on the GPT, against PyTorch's FSDP2 and our own replicas."""
    return rows_of(context, "gpt")
