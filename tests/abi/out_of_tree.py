"""Installs api/ alone into a folder of its own, builds a project of this repository against the
installed copy with the project's own CMakeLists.txt, and looks at the plugins that came out."""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

parser = argparse.ArgumentParser()
parser.add_argument("--root", type=pathlib.Path, required=True)
parser.add_argument("--cmake", default="cmake")
parser.add_argument("--build", required=True, help="folder of the project, relative to the root")
parser.add_argument("--only-export", help="the one symbol that a plugin may export")
parser.add_argument("--sanitize", default="", help="value of -fsanitize for the project's C code")
parser.add_argument("--then", action="append", default=[], metavar="COMMAND",
                    help="a command line for the shell; {build} stands for the folder of the plugins")
arguments = parser.parse_args()

# A stranger has no flags of ours.
environment = {name: value for name, value in os.environ.items() if name not in ("CFLAGS", "CXXFLAGS")}


def run(*command):
    result = subprocess.run([str(part) for part in command], env=environment, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if result.returncode != 0:
        sys.exit(f"FAILED ({result.returncode}): {' '.join(map(str, command))}\n{result.stdout}")
    return result.stdout


with tempfile.TemporaryDirectory(prefix="coupler-out-of-tree-") as folder:
    folder = pathlib.Path(folder)
    prefix = folder / "prefix"
    run(arguments.cmake, "-S", arguments.root / "api", "-B", folder / "api")
    run(arguments.cmake, "--install", folder / "api", "--prefix", prefix)
    installed = sorted(str(path.relative_to(prefix)) for path in prefix.rglob("*") if path.is_file())
    if not any(path.endswith("include/coupler/distributed_backend.h") for path in installed):
        sys.exit(f"FAILED: the header was not installed; there are {installed}")

    build = folder / "build"
    run(arguments.cmake, "-S", arguments.root / arguments.build, "-B", build,
        f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_BUILD_TYPE=Release",
        *([f"-DCMAKE_C_FLAGS=-fsanitize={arguments.sanitize} -g"] if arguments.sanitize else []))
    run(arguments.cmake, "--build", build, "-j2")
    plugins = sorted(path for path in build.rglob("libcoupler_*.so") if not path.stem.endswith("_impl"))
    if not plugins:
        sys.exit("FAILED: no plugin was built")
    for plugin in plugins:
        symbols = [line.split()[-1].split("@")[0]
                   for line in run("nm", "-D", "--defined-only", plugin).splitlines() if line]
        if "coupler_distributed_backend_v1" not in symbols:
            sys.exit(f"FAILED: {plugin.name} does not export the entry symbol")
        if arguments.only_export and symbols != [arguments.only_export]:
            sys.exit(f"FAILED: {plugin.name} exports {symbols}")
        print(f"built {plugin.name}")
    for command in arguments.then:
        print(run("/bin/sh", "-c", command.replace("{build}", str(build))), end="")
