"""Installs api/ alone into its own folder and builds plugins against the installed copy: a project of
this repository with its own CMakeLists.txt, or the example's code with the CMakeLists.txt of a page.
Then checks the plugins."""
import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

parser = argparse.ArgumentParser()
parser.add_argument("--root", type=pathlib.Path, required=True)
parser.add_argument("--cmake", default="cmake")
project = parser.add_mutually_exclusive_group(required=True)
project.add_argument("--build", help="folder of the project, relative to the root")
project.add_argument("--page", help="page whose first cmake block is a project with a plugin.c")
parser.add_argument("--only-export", help="the only symbol that a plugin may export")
parser.add_argument("--sanitize", default="", help="value of -fsanitize for the project's C code")
parser.add_argument("--then", action="append", default=[], metavar="COMMAND",
                    help="shell command to run afterwards; {build} is replaced by the plugins' folder")
arguments = parser.parse_args()

EXAMPLE = (arguments.root / "examples/plugin_in_c").resolve()
flags = [f"-fsanitize={arguments.sanitize} -g"] if arguments.sanitize else []
if arguments.page:
    flags.append(f"-I{EXAMPLE}")

# A third party does not have our flags.
environment = {name: value for name, value in os.environ.items() if name not in ("CFLAGS", "CXXFLAGS")}


def run(*command):
    result = subprocess.run([str(part) for part in command], env=environment, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if result.returncode != 0:
        sys.exit(f"FAILED ({result.returncode}): {' '.join(map(str, command))}\n{result.stdout}")
    return result.stdout


def project_of_page(folder):
    """The page's CMakeLists.txt, with all of c_self as plugin.c."""
    folder.mkdir()
    page = (arguments.root / arguments.page).read_text()
    (folder / "CMakeLists.txt").write_text(re.search(r"```cmake\n(.*?)```", page, re.S)[1])
    files = sorted([*(EXAMPLE / "c_self").glob("*.c"), *(EXAMPLE / "common").glob("*.c")])
    (folder / "plugin.c").write_text("".join(f'#include "{file}"\n' for file in files))
    return folder


with tempfile.TemporaryDirectory(prefix="coupler-out-of-tree-") as folder:
    folder = pathlib.Path(folder)
    prefix = folder / "prefix"
    run(arguments.cmake, "-S", arguments.root / "api", "-B", folder / "api")
    run(arguments.cmake, "--install", folder / "api", "--prefix", prefix)
    installed = sorted(str(path.relative_to(prefix)) for path in prefix.rglob("*") if path.is_file())
    if not any(path.endswith("include/coupler/distributed_backend.h") for path in installed):
        sys.exit(f"FAILED: the header was not installed; installed files: {installed}")

    build = folder / "build"
    project = arguments.root / arguments.build if arguments.build else project_of_page(folder / "page")
    run(arguments.cmake, "-S", project, "-B", build,
        f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_BUILD_TYPE=Release",
        f"-DCMAKE_C_FLAGS={' '.join(flags)}")
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
