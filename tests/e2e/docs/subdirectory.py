"""The project in docs/getting-started.md, with this tree as its subdirectory: it configures, its program
compiles, and it has the targets that the page starts. Building all of Coupler again would take too long
for a test.

    subdirectory.py SOURCE_DIR CMAKE
"""
import pathlib
import re
import subprocess
import sys
import tempfile

root, cmake = pathlib.Path(sys.argv[1]), sys.argv[2]


def run(*command):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} exited with {done.returncode}:\n{done.stdout}")
    return done.stdout


def first_block(page, language):
    return re.search(rf"```{language}\n(.*?)```", (root / page).read_text(), re.S)[1]


with tempfile.TemporaryDirectory(prefix="coupler-subdirectory-") as folder:
    folder = pathlib.Path(folder)
    project = first_block("docs/getting-started.md", "cmake")
    if "<path to coupler>" not in project:
        sys.exit("docs/getting-started.md has no placeholder for the path to coupler: fix this test")
    (folder / "CMakeLists.txt").write_text(project.replace("<path to coupler>", str(root)))
    (folder / "main.cc").write_text(first_block("README.md", "cpp"))
    run(cmake, "-S", folder, "-B", folder / "build", "-G", "Ninja")
    targets = run("ninja", "-C", folder / "build", "-t", "targets", "all")
    for target in ("coupler/bin/coupler", "train"):
        if not re.search(rf"^{target}: ", targets, re.M):
            sys.exit(f"the project does not build {target}")
    run("ninja", "-C", folder / "build", "CMakeFiles/train.dir/main.cc.o")
print("configured and compiled")
