"""Runs the notebook of `coupler new notebook` in a real Jupyter kernel, against an installed Coupler; then
cells of its own: a program, a function without a result, and what is wrong in a cell.

    notebook.py BUILD_DIR CMAKE
"""
import asyncio
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

import nbformat
from nbclient import NotebookClient

build, cmake = sys.argv[1:3]
LIMIT = 600  # seconds for a cell

# The cell of docs/launch-from-code.md.
WITH_RESULT = """%%coupler -n 2 -o training.seed=7 add(1000, 0.5)
#include <coupler/coupler.h>
// Adds the ranks' numbers; each rank has its own.
double add(int64_t samples, double scale) {
  coupler::Accelerator accelerator;
  const double own = scale * samples / accelerator.world_size();
  return accelerator.reduce(torch::tensor(own, torch::kDouble)).item<double>();
}
"""
PROGRAM = """%%coupler -n 2 -o training.mixed_precision=bf16
#include <coupler/coupler.h>
#include "net.h"
int main(int argc, char** argv) {
  coupler::Accelerator accelerator(argc, argv);
  accelerator.print("a program on ", accelerator.world_size(), " ranks in ", accelerator.mixed_precision());
}
"""
WITHOUT_RESULT = """%%coupler -n 2 greet("Grace", {1, 2})
#include <coupler/coupler.h>
void greet(const std::string& name, const std::vector<int>& numbers) {
  coupler::Accelerator().print("hello, ", name, " ", numbers.size());
}
"""
UNFINISHED = "%%coupler train()\ndouble train() { return 1 }\n"
THROWS = """%%coupler -n 2 train()
#include <stdexcept>
double train() { throw std::runtime_error("no data here"); }
"""
SLEEPS = """%%coupler -n 2 train()
#include <coupler/coupler.h>
#include <unistd.h>
void train() {
  coupler::Accelerator accelerator;
  accelerator.print("asleep");
  sleep(100);
}
"""


def check(condition, what, outputs):
    if not condition:
        sys.exit(f"{what}:\n{outputs}")


def text_of(cell):
    """All that the cell printed, returned and raised."""
    parts = []
    for output in cell.outputs:
        parts += [output.get("text", ""), output.get("data", {}).get("text/plain", ""), output.get("evalue", ""),
                  *output.get("traceback", ())]
    return "".join(parts)


def processes_of(folder):
    """The processes that run a program below the folder."""
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if "coupler-cell-" in os.readlink(process / "exe") and folder in (process / "environ").read_text():
                found.append(process.name)
        except (OSError, UnicodeDecodeError):
            pass
    return found


with tempfile.TemporaryDirectory(prefix="coupler-notebook-") as folder:
    prefix = pathlib.Path(folder, "prefix")
    subprocess.run([cmake, "--install", build, "--prefix", prefix], check=True, stdout=subprocess.DEVNULL)
    os.environ["PATH"] = f"{prefix / 'bin'}:{os.environ['PATH']}"
    os.environ["TMPDIR"] = folder  # where cells put their programs
    os.environ["JUPYTER_CONFIG_DIR"] = os.environ["IPYTHONDIR"] = folder
    subprocess.run(["coupler", "new", "notebook", "first_steps"], check=True, cwd=folder)
    home = pathlib.Path(folder, "first_steps")
    notebook = nbformat.read(home / "train.ipynb", as_version=4)
    client = NotebookClient(notebook, timeout=LIMIT, resources={"metadata": {"path": str(home)}}, allow_errors=True)
    with client.setup_kernel():
        def run(cell):
            notebook.cells.append(cell)
            client.execute_cell(cell, len(notebook.cells) - 1)
            return text_of(cell)

        for number, cell in enumerate(notebook.cells):
            if cell.cell_type == "code":
                client.execute_cell(cell, number)
                check(not any(output.output_type == "error" for output in cell.outputs), cell.source, text_of(cell))
        printed = "".join(map(text_of, (cell for cell in notebook.cells if cell.cell_type == "code")))
        check("Launching training on 2 processes" in printed and "epoch 2 loss" in printed, "no training", printed)
        check(text_of(notebook.cells[-1]).startswith("["), "the result is not a list", text_of(notebook.cells[-1]))

        new = nbformat.v4.new_code_cell
        said = run(new(WITH_RESULT))
        check(said.endswith("500.0"), "a function with a result", said)
        said = run(new(PROGRAM))
        check("a program on 2 ranks in bf16" in said, "a program", said)
        cell = new(WITHOUT_RESULT)
        said = run(cell)
        check("hello, Grace 2" in said and all(output.output_type == "stream" for output in cell.outputs),
              "a function without a result", said)
        said = run(new(UNFINISHED))
        check("cell:1:" in said and "the cell does not build" in said, "a cell that does not compile", said)
        said = run(new(THROWS))
        check("no data here" in said and "exit code 1" in said, "a function that throws", said)
        for line, problem in (("-n many train()", "-n/--processes"), ("--nodes 2 train()", "unrecognized"),
                              ("-o 'x train()", "No closing quotation")):
            said = run(new(f"%%coupler {line}\ndouble train() {{ return 1; }}\n"))
            check(problem in said and "%%coupler" in said, f"wrong options: {line}", said)

        def interrupt():
            deadline = time.monotonic() + LIMIT
            while len(processes_of(folder)) < 3 and time.monotonic() < deadline:  # two ranks and their launcher
                time.sleep(0.2)
            asyncio.run(client.km.interrupt_kernel())
        thread = threading.Thread(target=interrupt)
        thread.start()
        said = run(new(SLEEPS))
        thread.join()
        check("KeyboardInterrupt" in said, "an interrupt", said)
        deadline = time.monotonic() + 30
        while processes_of(folder) and time.monotonic() < deadline:
            time.sleep(0.1)
        check(not processes_of(folder), "an interrupt leaves processes", said)
        said = run(new("1 + 1"))
        check(said == "2", "the kernel is lost", said)
print("the notebook ran")
