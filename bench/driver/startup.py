"""Startup: from the command to the end of a job whose ranks run one collective."""
import os
import shutil
import socket
import statistics
import time

from . import children
from .report import Bar, Row

LIMIT = 120
TIMES = 5  # launches over shm and over gloo_cpu in each round


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def timed(command, context):
    start = time.perf_counter()
    children.run(command, context.folder, LIMIT)
    return time.perf_counter() - start


def measure(context, command, ranks=2):
    """Wall seconds, and the peak memory in MiB of the rank that used the most."""
    folder = os.path.join(context.folder, "peaks")
    shutil.rmtree(folder, ignore_errors=True)
    os.mkdir(folder)
    seconds = timed([*command, "--report", folder], context)
    peaks = []
    for rank in range(ranks):
        with open(os.path.join(folder, str(rank))) as file:
            peaks.append(int(file.read().split()[0]) / 1024)
    return seconds, max(peaks)


def accelerate_command(context, script, *arguments):
    # --multi_gpu on purpose: with --cpu, accelerate silently starts only one process.
    return [context.python, "-m", "accelerate.commands.accelerate_cli", "launch", "--multi_gpu",
            "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no",
            "--dynamo_backend", "no", "--main_process_port", str(free_port()),
            context.script(script), *arguments]


def startup(context):
    """coupler launch against accelerate launch: 2 ranks run one collective and exit."""
    context.need_python("torch", "accelerate")
    program = context.bench("first_collective")
    sides = {"gloo_cpu": lambda: context.launch(2, "gloo_cpu", *program),
             "accelerate": lambda: accelerate_command(context, "first_collective.py"),
             "mpi": lambda: context.launch(2, "mpi", *program)}
    seconds = {name: [] for name in sides}
    memory = {name: [] for name in sides}
    for command_of in sides.values():  # warm the page cache
        measure(context, command_of())
    for round_number in range(context.rounds_or(9)):
        order = list(sides) if round_number % 2 == 0 else list(sides)[::-1]
        for name in order:
            wall, peak = measure(context, sides[name]())
            seconds[name].append(wall)
            memory[name].append(peak)
    rows = []
    for backend, time_bar, memory_bar in (("gloo_cpu", Bar(">=", 12), Bar("<=", 0.25)),
                                          ("mpi", None, None)):
        rows.append(Row(f"launch to exit, {backend} / accelerate", "s", seconds[backend],
                        seconds["accelerate"], time_bar, less_is_better=True))
        rows.append(Row(f"peak memory of a rank, {backend} / accelerate", "MiB", memory[backend],
                        memory["accelerate"], memory_bar, less_is_better=True, faster=False))
    return [*rows, over_shm(context, program)]


def over_shm(context, program):
    """The same job over shm and over gloo_cpu, which differ by little: several of each in a round."""
    commands = {backend: context.launch(2, backend, *program) for backend in ("shm", "gloo_cpu")}
    medians = {backend: [] for backend in commands}
    timed(commands["shm"], context)  # warms the page cache
    for _ in range(context.rounds_or(9)):
        seconds = {backend: [] for backend in commands}
        for number in range(TIMES):
            for backend in commands if number % 2 == 0 else reversed(commands):
                seconds[backend].append(timed(commands[backend], context))
        for backend in commands:
            medians[backend].append(statistics.median(seconds[backend]))
    return Row("launch to exit, shm / gloo_cpu", "s", medians["shm"], medians["gloo_cpu"], Bar(">=", 1.0),
               less_is_better=True)


def launcher(context):
    """What coupler launch adds to two processes that do nothing."""
    true = shutil.which("true")
    both = ["sh", "-c", f"{true} & {true} & wait"]
    through = context.launch(2, "gloo_cpu", true)
    ours, peer = [], []
    for _ in range(context.rounds_or(30)):
        ours.append(1e3 * timed(through, context))
        peer.append(1e3 * timed(both, context))
    return [Row("coupler launch -n 2 true / the same from sh", "ms", ours, peer,
                Bar("<=", 20, "difference", "own cost <= 20 ms"), less_is_better=True)]
