"""A pipeline of two ranks against the unsplit model in one process."""
import contextlib
import statistics

from . import children
from .report import Bar, Row
from .turns import Group, together

STEPS = {"train": 2, "infer": 6}  # batches per turn
MICRO_BATCHES = 8  # of bench/pipeline
# The share of a batch's time in which both stages compute: at its start the second one waits for
# the first micro-batch, at its end the first one has nothing left.
BUSY = MICRO_BATCHES / (MICRO_BATCHES + 1)


def pipeline(context):
    """GPT of 6.5 million parameters in 8 micro-batches over 2 ranks, one thread each."""
    program = context.bench("pipeline")
    speed, cpu = {}, {}
    with contextlib.ExitStack() as stack:
        groups = {}
        for name, world in (("alone", 1), ("other", 1), ("gloo_cpu", 2), ("mpi", 2)):
            words = lambda path: [*program, "--control", path]
            make = words if world == 1 else lambda path, b=name: context.launch(
                2, b, *program, "--control", path)
            groups[name] = stack.enter_context(contextlib.closing(
                Group("pipeline-" + name, context.folder, world,
                      lambda path, make=make: [make(path)])))
        # Check that the models match by the first training losses, which rank 0 of a pipeline has.
        losses = {name: [group.turn("train", 1)[2] for _ in range(3)]
                  for name, group in groups.items()}
        for name, seen in losses.items():
            if any(abs(a - b) > 1e-3 * abs(b) for a, b in zip(seen, losses["alone"])):
                raise children.Failed(f"pipeline: the losses differ: {losses}")
        apart = groups["alone"], groups.pop("other")
        for mode, steps in STEPS.items():
            batches = 1 if context.quick else steps
            for group in groups.values():
                group.turn(mode, 1)
            together(apart, "micro-" + mode, 1)
            for round_number in range(context.rounds_or(7)):
                order = list(groups)[round_number % 3:] + list(groups)[:round_number % 3]
                for name in order:
                    seconds, used, _ = groups[name].turn(mode, batches)
                    speed.setdefault((mode, name), []).append(batches / seconds)
                    cpu.setdefault((mode, name), []).append(1e3 * used / batches)
                seconds = together(apart, "micro-" + mode, batches)
                speed.setdefault((mode, "apart"), []).append(BUSY * 2 * batches / seconds)
    return [
        # CPU time is rank 0's; unlike wall time, it does not depend on the machine's load.
        Row(f"{mode}: 2 ranks {name} / 1 rank", "batches/s", speed[mode, name],
            speed[mode, "alone"], Bar(">=", 1.6),
            extra={"ours_cpu_ms": statistics.median(cpu[mode, name]),
                   "peer_cpu_ms": statistics.median(cpu[mode, "alone"])},
            limit=speed[mode, "apart"],
            limit_name="two processes at once with whole models, in micro-batches, times 8/9")
        for mode in STEPS for name in ("gloo_cpu", "mpi")
    ]
