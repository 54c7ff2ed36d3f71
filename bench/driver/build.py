"""What a newcomer waits for: setup, build and tests on a bare Debian, and their own program."""
import os
import re
import subprocess

from .children import Failed, environment
from .report import Bar, Row

# In a fresh clone, in the order of a first day. What changes a source is code: ccache knows a file with a new comment.
NEWCOMER = {
    "scripts/quickstart": "quickstart",
    "scripts/test": "test after it",
    "cmake --install build/release --prefix /opt/coupler >/dev/null && cd /tmp && "
    "/opt/coupler/bin/coupler new project mine && cmake -S mine -B mine/build "
    "-DCMAKE_PREFIX_PATH=/opt/coupler >/dev/null": None,
    # The template's flags.
    "echo '#include <torch/torch.h>' >/tmp/torch.h && torch=$(echo .deps/torch-*/torch/include) && "
    "c++ -std=c++20 -O1 -DNDEBUG -isystem $torch -isystem $torch/torch/csrc/api/include "
    "-x c++-header -o /tmp/torch.h.gch /tmp/torch.h": "torch/torch.h",
    "cmake --build /tmp/mine/build": "program, first build",
    "echo 'static_assert(true);' >>/tmp/mine/main.cc && cmake --build /tmp/mine/build": "program, changed",
    "scripts/build dev unit_torch": None,
    "echo 'static_assert(true);' >>host/torch/accelerator/local_sgd.cc && scripts/build dev unit_torch && "
    "ctest --test-dir build/dev -R '^train_test$'": "a line of host/torch/accelerator changed",
}
# In another clone: from scratch to tested.
TESTER = {
    "scripts/setup --tests && scripts/get-test-models": "set-up",
    "scripts/build release all": "build",
    "scripts/build release benchmarks": "benchmarks",
    "scripts/test": "test",
}
SHORT = {"scripts/quickstart": "quickstart"}


def in_bare_system(context, commands):
    """{name: (seconds, seconds of CPU)} of the commands, in a system that is removed afterward."""
    log = os.path.join(context.folder, "fresh-check.log")
    with open(log, "w") as out:
        done = subprocess.run([os.path.join(context.source, "scripts/fresh-check"), *commands],
                              stdout=out, stderr=subprocess.STDOUT, env=environment())
    with open(log) as file:
        text = file.read()
    if done.returncode != 0:
        raise Failed(f"scripts/fresh-check exited with {done.returncode}:\n{text[-2000:]}")
    taken = {}
    for command, seconds, cpu in re.findall(
            r"^fresh-check: (.*) passed in ([\d.]+) s \(([\d.]+) s of CPU\)$", text, re.M):
        if commands[command]:
            taken[commands[command]] = float(seconds), float(cpu)
    return taken


def build(context):
    """Setup, build and tests of a clone on a bare Debian, against their time limits."""
    if os.getuid() != 0:
        raise Failed("debootstrap needs root to make a bare Debian; run as root")
    if context.quick:
        taken = in_bare_system(context, SHORT)
        return [row("quickstart", taken["quickstart"][0], 300)]
    taken = in_bare_system(context, NEWCOMER)
    tester = in_bare_system(context, TESTER)
    seconds = {name: wall for name, (wall, _) in taken.items()}
    nothing = sum(tester[name][0] for name in ("set-up", "build", "test"))
    cpu = tester["build"][1] + tester["benchmarks"][1]
    return [
        row("clone to trained digits", seconds["quickstart"], 300),
        row("scripts/test after quickstart", seconds["test after it"], 780,
            taken["test after it"][1] / os.cpu_count(), "its CPU time on all cores alike"),
        row("scripts/test from scratch", nothing, 1080),
        row("CPU time of the whole build", cpu, 1200),
        row("a changed line in host/torch/accelerator, to test results", seconds["a line of host/torch/accelerator changed"],
            40),
        row("program of coupler new, first build", seconds["program, first build"], 25,
            seconds["torch/torch.h"], "precompiling torch/torch.h alone"),
        row("program of coupler new, after a change", seconds["program, changed"], 7),
    ]


def row(name, seconds, most, limit=None, limit_name=""):
    return Row(name, "s", [seconds], [seconds], Bar("<=", most, "ours"), less_is_better=True,
               limit=limit and [limit], limit_name=limit_name)
