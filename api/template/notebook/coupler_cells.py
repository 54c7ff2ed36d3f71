"""Cells in C++ that run on several processes, for a notebook with a Python kernel.

    %load_ext coupler_cells

    %%coupler -n 2 train(5, 1e-3)
    #include <coupler/coupler.h>
    double train(int epochs, double rate) { coupler::Accelerator accelerator; ...; return accuracy; }

calls the function on two processes and returns rank 0's result as a Python value: anything that
nlohmann::json converts. The arguments are C++, too. Without a call the cell is a whole program with a
main of its own. `%%writefile net.h` makes a header that other cells include. The first cell also
compiles LibTorch's headers, which takes half a minute; later ones take seconds.
"""
import argparse
import contextlib
import fcntl
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import tempfile

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, magics_class

FOLDER = pathlib.Path(__file__).resolve().parent
CALL = re.compile(r"(?:^|\s)([A-Za-z_]\w*)\s*\((.*)\)\s*$", re.S)
INTERRUPTED = 30  # seconds that an interrupted run has to end

# Starts the function on the ranks, and writes rank 0's result into the file that its argument names.
MAIN = """
#include <coupler/launch.h>
#include <cstdio>
#include <fstream>
#include <type_traits>
const coupler::Launchable coupler_cell_launchable("{name}", {name});
template <class Call>
void coupler_cell_run(Call call, const char* file) {{
  if constexpr (std::is_void_v<decltype(call())>) {{
    call();
  }} else {{
    std::ofstream(file) << nlohmann::json(call());
  }}
}}
int main(int, char** argv) try {{
  coupler::enter_launched();
  const coupler::LaunchOptions options = {options};
  coupler_cell_run([&] {{ return coupler::launch(options, {arguments}); }}, argv[1]);
}} catch (const std::exception& error) {{
  std::fprintf(stderr, "%s\\n", error.what());
  return 1;
}}
"""


class Words(argparse.ArgumentParser):
    def error(self, message):
        raise UsageError(f"%%coupler: {message}\n{self.format_usage()}")


def parse(line):
    """The options, and the call as (function, arguments); None without one."""
    call = CALL.search(line)
    words = Words(prog="%%coupler", add_help=False,
                  usage="%%coupler [-n PROCESSES] [--config FILE] [-o KEY=VALUE]... [FUNCTION(ARGUMENTS)]")
    words.add_argument("-n", "--processes", type=int, default=1)
    words.add_argument("--config", default="")
    words.add_argument("-o", action="append", default=[], dest="overrides")
    try:
        options = words.parse_args(shlex.split(line[:call.start()] if call else line))
    except ValueError as error:
        raise UsageError(f"%%coupler: {error}") from None
    return options, call and (call[1], call[2].strip())


def quoted(text):
    """A string literal of C++; JSON's escapes are valid there, and so is UTF-8."""
    return json.dumps(text, ensure_ascii=False)


def program(cell, options, call):
    """The source of the program. Errors of the compiler name the cell's own lines."""
    source = f'#line 1 "cell"\n{cell}\n'
    if call is None:
        return source
    name, arguments = call
    overrides = ", ".join(map(quoted, options.overrides))
    return source + '#line 1 "coupler_cells.py"' + MAIN.format(
        name=name, arguments=f"{name}, {arguments}" if arguments else name,
        options=f"{{.processes = {options.processes}, .config = {quoted(options.config)}, "
                f".overrides = {{{overrides}}}}}")


def coupler_program():
    found = shutil.which("coupler")
    if not found:
        raise UsageError("%%coupler: the program coupler is not in PATH: install Coupler, or start Jupyter with its "
                         "bin folder in PATH")
    return pathlib.Path(found).resolve()


def build(source, target):
    """Builds source in the hidden folder .cells, and copies the program to target. One at a time."""
    work = FOLDER / ".cells"
    work.mkdir(exist_ok=True)
    with open(work / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (work / "cell.cc").write_text(source)
        steps = [["cmake", "--build", str(work)]]
        if not (work / "CMakeCache.txt").exists():
            prefix = coupler_program().parent.parent
            steps.insert(0, ["cmake", "-S", str(FOLDER), "-B", str(work), f"-DCMAKE_PREFIX_PATH={prefix}"])
        for step in steps:
            done = subprocess.run(step, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  errors="replace")
            if done.returncode != 0:
                print(done.stdout)
                raise UsageError("the cell does not build; the compiler's messages are above")
        shutil.copy2(work / "cell", target)


def run(command):
    """Runs the command and prints what it prints; its exit code. It ends with the kernel, and after an interrupt."""
    # A session of its own: Jupyter interrupts the kernel's whole process group, and the ranks are
    # to hear of it once, from their launcher.
    process = subprocess.Popen(["setpriv", "--pdeathsig", "TERM", *command], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
    try:
        for line in process.stdout:
            print(line, end="", flush=True)
        return process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=INTERRUPTED)
        raise
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@magics_class
class CouplerCells(Magics):
    @cell_magic
    def coupler(self, line, cell):
        """See the top of coupler_cells.py."""
        options, call = parse(line)
        with tempfile.TemporaryDirectory(prefix="coupler-cell-") as folder:
            target, result = f"{folder}/cell", pathlib.Path(folder, "result")
            build(program(cell, options, call), target)
            command = [target, str(result)]
            if call is None:
                settings = ["--config", options.config] if options.config else []
                for override in options.overrides:
                    settings += ["-o", override]
                command = [str(coupler_program()), "launch", "-n", str(options.processes), *settings, target]
            code = run(command)
            if code != 0:
                raise UsageError(f"the cell ended with exit code {code}; its messages are above")
            return json.loads(result.read_text()) if result.exists() else None


def load_ipython_extension(shell):
    shell.register_magics(CouplerCells)
