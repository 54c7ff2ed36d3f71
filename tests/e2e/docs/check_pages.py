"""The documentation is consistent: links have targets, files, commands and options exist, the code reads
the variables, and nothing is unfinished.

    check_pages.py SOURCE_DIR COUPLER_PROGRAM
"""
import os
import pathlib
import re
import subprocess
import sys
import urllib.parse

from blocks import blocks_of, pages_of, without_blocks

root = pathlib.Path(sys.argv[1])
program = sys.argv[2]
pages = pages_of(root)
problems = []

# Programs in pages that are not from this tree; a name in <> or after ./ is the reader's own.
FOREIGN = {"cmake", "ctest", "deepspeed", "eval", "export", "git", "jupyter", "kubectl", "man", "mpirun", "mpirun.mpich", "pip",
           "sbatch", "srun", "sudo", "torchrun", "wandb"}


def complain(page, text):
    problems.append(f"{page.relative_to(root)}: {text}")


def run(*arguments):
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


def anchors(text):
    """GitHub's anchors of the headings; a repeated one gets a number."""
    seen = {}
    for heading in re.findall(r"^#+ (.*)$", without_blocks(text), re.M):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        number = seen[name] = seen.get(name, -1) + 1
        yield f"{name}-{number}" if number else name


def is_address(target):
    address = urllib.parse.urlsplit(target)
    if address.scheme == "mailto":
        return re.fullmatch(r"[^@\s]+@[\w.-]+\.\w+", address.path) is not None
    return (address.scheme in ("http", "https") and re.fullmatch(r"([\w-]+\.)+\w{2,}(:\d+)?", address.netloc)
            is not None and re.fullmatch(r"[!-~]*", target) is not None)


def check_links(page, text):
    text = without_blocks(text)
    for target in re.findall(r"<((?:https?|mailto):[^>]*)>", text):
        if not is_address(target):
            complain(page, f"<{target}> is not an address")
    # A target with a space is not a link to a reader.
    for target in re.findall(r"\]\(([^)]*)\)", re.sub(r"`[^`\n]*`", "", text)):
        if re.match(r"[a-z]+:", target):
            if not is_address(target):
                complain(page, f"a link points to {target}, which is not an address")
            continue
        if re.search(r"\s", target):
            complain(page, f"a link points to '{target}', which contains a space")
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            complain(page, f"a link points to {target}, which does not exist")
        elif anchor and anchor not in anchors(file.read_text()):
            complain(page, f"a link points to {target}, but there is no such heading")


# Paths below a folder of the tree, without placeholders; reports are written by scripts.
PATH = re.compile(r"`((?:api|bench|cli|cmake|docs|examples|host|models|packaging|plugins|scripts|tests)/[a-z0-9_/.+-]+)`")


def check_paths(page, text):
    for path in sorted(set(PATH.findall(without_blocks(text)))):
        if not (root / path).exists() and not path.startswith("tests/reports/"):
            complain(page, f"{path} does not exist")


# A row may name functions after a file: `path.cc`: `first`, `second`.
NAMED = re.compile(r"`([\w/]+\.(?:cc|h))`: ((?:`\w+`(?:, )?)+)")


def check_functions(page, text):
    for path, names in NAMED.findall(text):
        if not (root / path).exists():
            continue  # check_paths complains
        for name in re.findall(r"\w+", names):
            if not re.search(rf"\b{name}\(", (root / path).read_text()):
                complain(page, f"{path} has no function {name}")


def commands_of(text):
    for block in blocks_of(text):
        if block.language not in ("sh", "bash"):
            continue
        for line in block.text.replace("\\\n", " ").splitlines():
            line = re.sub(r"\s+#.*$", "", line).strip()
            while re.match(r"[A-Z_]+=\S+ ", line):
                line = line.split(" ", 1)[1]
            if line:
                yield line


HELP = {}


def help_of(command):
    if command not in HELP:
        HELP[command] = run(command, "--help") if command else run("--help")
    return HELP[command]


def check_coupler(page, words):
    """words: the words after `coupler`, up to a program of the user."""
    command = words[0]
    if command.startswith("--"):
        if command not in help_of(""):
            complain(page, f"coupler {command}: there is no such option")
        return
    if not re.search(rf"^  {re.escape(command)} ", help_of(""), re.M):
        complain(page, f"coupler {command}: there is no such command")
        return
    values = {"-n", "-o", "--config"}
    rest = iter(words[1:])
    for word in rest:
        if word.startswith("-"):
            option = word.split("=")[0]
            if option not in help_of(command):
                complain(page, f"coupler {command} {option}: there is no such option")
            if word in values:
                next(rest, None)
        elif command == "launch":
            return  # the program; the rest are its arguments


def makes_program(name):
    """Whether a CMakeLists.txt of the tree builds build/PRESET/bin/…/NAME."""
    return any(re.search(rf"\badd_executable\({re.escape(name)}\b", text) or f"OUTPUT_NAME {name}" in text
               for text in CMAKE)


def check_command(page, line):
    for part in re.split(r" && | \| ", line):
        words = part.split()
        if words[0] == "sudo":
            words = words[1:]
        first = words[0]
        built = re.fullmatch(r"build/[\w-]+/bin/(?:tests/)?([\w-]+)", first)
        if not (first in FOREIGN or first == "coupler" or first.startswith(("./", "scripts/", "bench/run"))
                or first.endswith("/coupler/bin/coupler") or (built and makes_program(built[1]))):
            complain(page, f"{first} is neither in this tree nor in FOREIGN of {pathlib.Path(__file__).name}")
    words = line.split()
    first = words[0]
    if first == "bench/run":
        names = {word for word in words[1:] if re.fullmatch(r"[a-z][a-z0-9-]*", word)}
        unknown = names - BENCHMARKS
        if unknown:
            complain(page, f"bench/run knows no {', '.join(sorted(unknown))}")
    if first.startswith(("scripts/", "bench/")):
        path = root / first
        if not path.is_file() or not os.access(path, os.X_OK):
            complain(page, f"{first} is not a program of this tree")
        for word in words[1:]:
            if word.startswith("--") and word not in path.read_text():
                complain(page, f"{first} knows no {word}")
    for place, word in enumerate(words[:-1]):
        if word == "coupler" or word.endswith("/bin/coupler"):
            check_coupler(page, words[place + 1:])
    preset = re.search(r"--preset (\S+)", line)
    if preset and f'"name": "{preset[1]}"' not in (root / "CMakePresets.json").read_text():
        complain(page, f"{line}: there is no such preset")


CMAKE = [path.read_text() for folder in ("bench", "cli", "examples", "tests")
         for path in sorted((root / folder).rglob("CMakeLists.txt"))]
BENCHMARKS = set(re.findall(r'^    "([a-z0-9-]+)": \w+\.\w+,', (root / "bench/run").read_text(), re.M))

for page in pages:
    text = page.read_text()
    check_links(page, text)
    check_paths(page, text)
    check_functions(page, text)
    for word in ("TO" + "DO", "FIX" + "ME", "TB" + "D", "lorem", "coming soon"):
        if re.search(rf"\b{word}\b", text, re.I):
            complain(page, f"it contains '{word}'")
    for number, line in enumerate(text.splitlines(), 1):
        if line != line.rstrip():
            complain(page, f"line {number} has trailing whitespace")
    for line in commands_of(text):
        check_command(page, line)

# The code reads every COUPLER_ variable that the documentation names.
sources = "".join(path.read_text() for folder in ("host", "cli", "plugins", "cmake", "tests/e2e/docs", "tests/models")
                  for path in sorted((root / folder).rglob("*"))
                  if path.suffix in (".cc", ".h", ".cmake", ".py", ".txt"))
sources += (root / "CMakeLists.txt").read_text() + (root / "bench/run").read_text() + run("config", "--explain")
for page in pages:
    for name in set(re.findall(r"\bCOUPLER_[A-Z0-9_]*[A-Z0-9]\b", page.read_text())):
        key = name.removeprefix("COUPLER_").lower().replace("_", ".", 1)
        if name not in sources and key not in sources:
            complain(page, f"nothing reads {name}")

# The table describes exactly the existing benchmarks.
rows = re.findall(r"^\| (`.*?) \|", (root / "bench/README.md").read_text(), re.M)
described = set(re.findall(r"`([a-z0-9-]+)`", "".join(rows)))
for name in sorted(BENCHMARKS ^ described):
    complain(root / "bench/README.md", f"`{name}` must be in its table and in bench/run")

# A figure names the benchmark that measures it.
figures = (root / "README.md").read_text().partition("\n## Figures\n")[2].partition("\n## ")[0]
measured = re.findall(r"^\| `([a-z0-9-]+)` \|", figures, re.M)
for name in sorted(set(measured) - BENCHMARKS) if measured else ["no benchmark at all"]:
    complain(root / "README.md", f"a figure names {name}, which bench/run does not know")

print(f"{len(pages)} pages")
print("\n".join(problems))
sys.exit(bool(problems))
