"""How soon a lost rank is reported: killed or stopped at a random moment of a training job."""
import contextlib
import os
import random
import re
import signal
import statistics
import time

from . import children, steps
from .report import Bar, Row
from .turns import Group

LIMIT = 30  # s, to report it; after that the round counts as LIMIT
WORLD = 2
# Tells 4 ranks of this machine that they are on two machines.
ON_TWO_MACHINES = ("sh", "-c", "export COUPLER_LOCAL_RANK=$((COUPLER_RANK % 2)) "
                   "COUPLER_LOCAL_WORLD_SIZE=2; exec \"$@\"", "sh")
# The backend, its options, the number of ranks, and what starts the program.
CELLS = (("gloo_cpu", (), WORLD, ()), ("mpi", (), WORLD, ()), ("shm", (), WORLD, ()),
         ("hierarchical",
          ("backend.hierarchical.local=shm", "backend.hierarchical.across=gloo_cpu"), 4,
          ON_TWO_MACHINES),
         ("fsdp", ("backend.fsdp.base=gloo_cpu",), WORLD, ()),
         ("fsdp", ("backend.fsdp.base=mpi",), WORLD, ()))


def process_of(rank, launcher_log):
    """The process id of a rank of the job that writes this log, or None."""
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                variables = file.read().split(b"\0")
            if (f"COUPLER_RANK={rank}".encode() in variables
                    and f"BENCH_JOB={launcher_log}".encode() in variables
                    and os.readlink(f"/proc/{entry}/exe").endswith("/digits")):
                return int(entry)
        except OSError:
            continue  # it has just exited
    return None


def start(context, command, log_path):
    environment = children.environment()
    environment["BENCH_JOB"] = log_path
    return children.start(command, context.folder, environment, open(log_path, "w"))


def seconds_to_name(context, command, rank, number, moment):
    """Seconds from the signal, sent to a rank `moment` seconds after the start, to the line that
    names it; None if the job ended first."""
    log_path = os.path.join(context.folder, "job.log")
    process = start(context, command, log_path)
    try:
        time.sleep(moment)
        victim = process_of(rank, log_path)
        if victim is None:
            return None
        begin = time.monotonic()
        os.kill(victim, number)
        named = re.compile(rf"rank {rank}( \(process {victim}\))? "
                           "(was killed by signal|is stopped|is gone|cannot be reached)")
        while time.monotonic() < begin + LIMIT:
            with open(log_path) as log:
                if named.search(log.read()):
                    return time.monotonic() - begin
            time.sleep(0.002)
            if process.poll() == 0:
                return None  # it ended at the same time
        return float(LIMIT)
    except ProcessLookupError:
        return None
    finally:
        children.end(process)


def peers(context):
    """A rank of the digits example is killed or stopped at random: seconds until it is reported."""
    rows = []
    random.seed(1)
    program = context.program("digits")
    for backend, options, ranks, starter in CELLS:
        command = context.launch(ranks, backend, *starter, program, "--epochs", "10",
                                 options=options)
        begin = time.monotonic()
        children.run(command, context.folder, 120)
        length = time.monotonic() - begin
        bases = " and ".join(option.split("=")[1] for option in options)
        name = f"{backend} over {bases}" if bases else backend
        for number, what in ((signal.SIGKILL, "killed"), (signal.SIGSTOP, "stopped")):
            taken = []
            while len(taken) < context.rounds_or(100):
                seconds = seconds_to_name(context, command, ranks - 1, number,
                                          random.uniform(0.05, length))
                if seconds is not None:
                    taken.append(seconds)
            taken.sort()
            p99 = taken[min(len(taken) - 1, int(0.99 * len(taken)))]
            rows.append(Row(f"{name}: {what} rank reported, p99 of {len(taken)} / promised", "s",
                            [p99], [1.0], Bar("<=", 1, "ours", "p99 <= 1 s"),
                            less_is_better=True,
                            extra={"median": statistics.median(taken), "max": taken[-1]}))
    return rows


def watch(context):
    """GPT steps of 2 ranks that watch each other, against backend.peer_timeout = 0s."""
    program = context.bench("steps")
    count = steps.STEPS["gpt"]
    with contextlib.ExitStack() as stack:
        def group(name, timeout):
            return stack.enter_context(contextlib.closing(Group(
                name, context.folder, WORLD, lambda path: [context.launch(
                    WORLD, "gloo_cpu", *program, "--model", "gpt", "--control", path,
                    options=(f"backend.peer_timeout={timeout}",))])))

        groups = [group("watched", "800ms"), group("unwatched", "0s")]
        speed = [[], []]
        for each in groups:
            each.turn("ours", steps.WARM_UP, None)
        for round_number in range(context.rounds_or(21)):
            for side in (0, 1) if round_number % 2 == 0 else (1, 0):
                speed[side].append(count / groups[side].turn("ours", count, None)[0])
    return [Row("gpt 2 ranks gloo_cpu, watched / unwatched", "steps/s", speed[0], speed[1],
                Bar(">=", 0.99))]
