"""How long a user waits for coupler --help and coupler env."""
import glob
import os
import statistics
import time

from . import children
from .report import Bar, Row

TIMES = 20  # runs of ours for each run of Accelerate's


def milliseconds(command, **variables):
    """Time of a command with its output discarded, without the overhead of Python's subprocess."""
    quiet = [(os.POSIX_SPAWN_OPEN, stream, "/dev/null", os.O_RDWR, 0) for stream in (0, 1, 2)]
    start = time.perf_counter()
    pid = os.posix_spawnp(command[0], command, children.environment(**variables),
                          file_actions=quiet)
    _, status = os.waitpid(pid, 0)
    taken = 1e3 * (time.perf_counter() - start)
    if status != 0:
        raise children.Failed(f"exit code {os.waitstatus_to_exitcode(status)}: {' '.join(command)}")
    return taken


def commands(context):
    """coupler --help and coupler env, against accelerate's."""
    context.need_python("torch", "accelerate")
    rows = []
    # Without any command of ours: the program starts, and the dynamic linker loads every plugin.
    # Not the library that gloo_cpu loads to connect: its operator new calls the program's, which it
    # would be itself.
    plugins = ":".join(sorted(
        path for path in glob.glob(os.path.join(context.build, "lib", "coupler", "*.so"))
        if not path.endswith("_impl.so")))
    start = [context.program("coupler"), "--help"]
    for word in "--help", "env":
        ours = [context.program("coupler"), word]
        theirs = [context.python, "-m", "accelerate.commands.accelerate_cli", word]
        for command in ours, theirs:
            milliseconds(command)  # warms the page cache
        taken, peer, loaded = [], [], []
        for _ in range(context.rounds_or(5)):
            taken.append(statistics.median(milliseconds(ours) for _ in range(TIMES)))
            if word == "env":
                loaded.append(statistics.median(milliseconds(start, LD_PRELOAD=plugins)
                                                for _ in range(TIMES)))
            peer.append(milliseconds(theirs))
        rows.append(Row(f"coupler {word}", "ms", taken, taken, Bar("<=", 10, "ours"),
                        less_is_better=True, limit=loaded or None,
                        limit_name="coupler --help with every plugin preloaded"))
        rows.append(Row(f"coupler {word} / accelerate {word}", "ms", taken, peer, Bar(">=", 10),
                        less_is_better=True))
    return rows
