"""Training steps per second: each transport and one process against PyTorch, in turns."""
import contextlib
import os

from . import children
from .report import Bar, Row
from .turns import Group, together

STEPS = {"mlp": 50, "gpt": 12}  # per turn
# Long enough for allocators, connections and bucket tuning to settle.
WARM_UP = 32
TRANSPORTS = ("gloo_cpu", "mpi", "shm")
BARS = {"mlp": {"gloo_cpu": 1.7, "mpi": 2.4, "shm": 2.6}, "gpt": {"gloo_cpu": 1.2, "mpi": 1.4}}
SCALING = {"gpt": {"gloo_cpu": 0.88, "mpi": 0.88}}


def open_groups(context, model, stack):
    program = context.bench("steps")

    def ours(name, world, make):
        words = lambda path: [*program, "--model", model, "--control", path]
        return stack.enter_context(contextlib.closing(
            Group(name, context.folder, world, lambda path: [make(words(path))])))

    def python(path):
        meet = os.path.join(context.folder, "meet-" + model)
        return [[context.python, context.script("train_in_turns.py"), "--model", model, "--control",
                 path, "--rank", str(rank), "--world", "2", "--meet", meet] for rank in range(2)]

    groups = {name: ours(f"{name}-{model}", 1, lambda words: words) for name in ("single", "other")}
    for backend in TRANSPORTS:
        groups[backend] = ours(f"{backend}-{model}", 2,
                               lambda words, b=backend: context.launch(2, b, *words))
    groups["python"] = stack.enter_context(contextlib.closing(
        Group("python-" + model, context.folder, 2, python)))
    return groups


def train(context, model):
    """{side: [steps per second]} and {side: [CPU milliseconds per step]}, one entry per round."""
    steps = STEPS[model]
    with contextlib.ExitStack() as stack:
        groups = open_groups(context, model, stack)
        sides = {"gloo_cpu": (groups["gloo_cpu"], "ours", None),
                 "ddp": (groups["python"], "ddp", None),
                 "mpi": (groups["mpi"], "ours", None),
                 "ddp-fused": (groups["python"], "ddp-fused", None),
                 "single": (groups["single"], "ours", None),
                 "shm": (groups["shm"], "ours", None),
                 "py-single-fused": (groups["python"], "single-fused", [0]),
                 "py-single": (groups["python"], "single", [0])}
        check_same_training(model, groups, sides)
        groups["other"].turn("ours", WARM_UP)
        speed = {name: [] for name in (*sides, "apart")}
        cpu = {name: [] for name in sides}
        for round_number in range(context.rounds_or(9)):
            # Each round starts with another side; every other round runs in reverse order.
            order = list(sides)[round_number % len(sides):] + list(sides)[:round_number % len(sides)]
            for name in order if round_number % 2 == 0 else order[::-1]:
                group, mode, ranks = sides[name]
                seconds, used, _ = group.turn(mode, steps, ranks)
                speed[name].append(steps / seconds)
                cpu[name].append(1e3 * used / steps)
            speed["apart"].append(
                steps / together((groups["single"], groups["other"]), "ours", steps))
        for group in groups.values():
            if group.idle_share() > 0.02:
                context.say(f"warning: {group.name} used {group.idle_share():.1%} of a core "
                            "between its turns")
    return speed, cpu


def check_same_training(model, groups, sides):
    """Warms up, and checks that sides of the same world size see the same losses."""
    parameters = {name: group.parameters for name, group in groups.items()}
    if len(set(parameters.values())) != 1:
        raise children.Failed(f"{model}: the models differ in their parameters: {parameters}")
    losses = {}
    for name, (group, mode, ranks) in sides.items():
        first = group.turn(mode, 1, ranks)[2]
        losses[name] = (first, group.turn(mode, WARM_UP, ranks)[2])
    for names in (("ddp", *TRANSPORTS, "ddp-fused"),
                  ("py-single", "single", "py-single-fused")):
        for name in names:
            for mine, right in zip(losses[name], losses[names[0]]):
                if abs(mine - right) > 1e-3 * abs(right):
                    raise children.Failed(f"{model}: the losses differ: {losses}")


def rows_of(context, model):
    context.need_python("torch")
    speed, cpu = train(context, model)

    def row(title, ours, peer, bar=None, limit=False):
        extra = {f"{side}_cpu_ms": sorted(cpu[name])[len(cpu[name]) // 2]
                 for side, name in (("ours", ours), ("peer", peer)) if name in cpu}
        return Row(f"{model} {title}", "steps/s", speed[ours], speed[peer],
                   bar and Bar(">=", bar), extra=extra, limit=speed["apart"] if limit else None,
                   limit_name="two processes at once that do not communicate")

    rows = []
    for backend in TRANSPORTS:
        rows.append(row(f"2 ranks {backend} / DDP AdamW", backend, "ddp", BARS[model].get(backend),
                        limit=True))
        rows.append(row(f"2 ranks {backend} / DDP fused AdamW", backend, "ddp-fused", limit=True))
    rows.append(row("1 process / Python fused AdamW", "single", "py-single-fused",
                    1.0 if model == "gpt" else None))
    rows.append(row("1 process / Python AdamW", "single", "py-single"))
    for backend in TRANSPORTS:
        rows.append(row(f"2 ranks {backend} / alone (scaling)", backend, "single",
                        SCALING.get(model, {}).get(backend), limit=True))
    rows.append(row("2 ranks shm / without communication", "shm", "apart",
                    0.95 if model == "mlp" else None, limit=True))  # 1: its peer is the limit
    rows.append(row("Python: DDP / alone (scaling)", "ddp", "py-single"))
    return rows


def mlp(context):
    """MLP 784-512-512-10, batch of 64 per rank."""
    return rows_of(context, "mlp")


def gpt(context):
    """GPT of 10.5 million parameters, 4 sequences of 64 tokens per rank."""
    return rows_of(context, "gpt")
