"""Context: the command line's settings for every benchmark."""
import dataclasses
import os
import subprocess
import sys

from . import children

NEEDED = "pip install torch==2.15.0 accelerate==1.15.0 transformers numpy"


@dataclasses.dataclass
class Context:
    source: str  # the repository
    build: str   # a build folder
    python: str  # an interpreter with torch, accelerate and transformers
    folder: str  # temporary; also the children's working directory
    rounds: int  # 0: each benchmark's default
    quick: bool
    pin: bool    # bind each rank of the collectives to a core

    def program(self, name):
        path = os.path.join(self.build, "bin", name)
        if not os.access(path, os.X_OK):
            raise children.Failed(f"{path} is missing: run scripts/build release benchmarks, or "
                                  "pass another build folder with --build")
        return path

    def bench(self, name):
        """The command line of one of bench/main.cc's programs."""
        return [self.program("bench/bench"), name]

    def launch(self, processes, backend, *command, options=(), flags=()):
        """The command line of a launch. options: more settings, such as "backend.fsdp.base=mpi"."""
        words = [self.program("coupler"), "launch", "-n", str(processes), *flags]
        for option in (f"backend.use={backend}", *options):
            words += ["-o", option]
        return [*words, *command]

    def script(self, name):
        return os.path.join(self.source, "bench", "python", name)

    def rounds_or(self, usual):
        return self.rounds or (3 if self.quick else usual)

    def need_python(self, *modules):
        """Raises Failed with installation advice if a module is missing."""
        try:
            test = subprocess.run([self.python, "-c", "import " + ", ".join(modules)],
                                  capture_output=True, text=True, timeout=120)
            missing = test.returncode != 0
        except OSError as error:
            raise children.Failed(f"cannot run {self.python}: {error.strerror}; pass an "
                                  "interpreter with --python or COUPLER_BENCH_PYTHON")
        if missing:
            raise children.Failed(f"{self.python} cannot import {', '.join(modules)}: run {NEEDED} "
                                  "in a virtual environment, then pass its interpreter with "
                                  "--python or COUPLER_BENCH_PYTHON")

    def say(self, text):
        print(text, file=sys.stderr, flush=True)
