"""The documentation holds together: links lead somewhere, commands and options exist, exit codes and
variables are the code's, and nothing is left to be written.

    check_pages.py SOURCE_DIR COUPLER_PROGRAM
"""
import os
import pathlib
import re
import subprocess
import sys

root = pathlib.Path(sys.argv[1])
program = sys.argv[2]
pages = [root / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
pages += sorted((root / "docs").glob("*.md"))
problems = []


def complain(page, text):
    problems.append(f"{page.relative_to(root)}: {text}")


def run(*arguments):
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


def anchors(text):
    """GitHub's names of the headings."""
    for heading in re.findall(r"^#+ (.*)$", text, re.M):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def check_links(page, text):
    for target in re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", text, flags=re.S)):
        if re.match(r"https?://|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            complain(page, f"a link leads to {target}, which is not there")
        elif anchor and anchor not in anchors(file.read_text()):
            complain(page, f"a link leads to {target}, but there is no such heading")


def commands_of(text):
    for block in re.findall(r"```sh\n(.*?)```", text, re.S):
        for line in block.replace("\\\n", " ").splitlines():
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
    """words: what stands behind `coupler`, up to a program of the user's."""
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
            return  # the program, whose arguments are its own


def check_command(page, line):
    words = line.split()
    first = words[0]
    if first.startswith(("scripts/", "examples/", ".ci/")):
        path = root / first
        if not path.is_file() or not os.access(path, os.X_OK):
            complain(page, f"{first} is no program of the tree")
        for word in words[1:]:
            if word.startswith("--") and word not in path.read_text():
                complain(page, f"{first} knows no {word}")
    for place, word in enumerate(words[:-1]):
        if word == "coupler" or word.endswith("/bin/coupler"):
            check_coupler(page, words[place + 1:])
    preset = re.search(r"--preset (\S+)", line)
    if preset and f'"name": "{preset[1]}"' not in (root / "CMakePresets.json").read_text():
        complain(page, f"{line}: there is no such preset")


for page in pages:
    text = page.read_text()
    check_links(page, text)
    if text.count("```") % 2:
        complain(page, "a fenced block is not closed")
    for word in ("TO" + "DO", "FIX" + "ME", "TB" + "D", "lorem", "coming soon"):
        if re.search(rf"\b{word}\b", text, re.I):
            complain(page, f"'{word}' is left in it")
    for number, line in enumerate(text.splitlines(), 1):
        if line != line.rstrip():
            complain(page, f"line {number} ends in blanks")
    for line in commands_of(text):
        check_command(page, line)

# A COUPLER_ variable that the documentation names is one that something reads.
sources = "".join(path.read_text() for folder in ("host", "cli", "plugins", "cmake", "tests/e2e/docs", "tests/models")
                  for path in sorted((root / folder).rglob("*"))
                  if path.suffix in (".cc", ".h", ".cmake", ".py", ".txt"))
sources += (root / "CMakeLists.txt").read_text() + run("config", "--explain")
for page in pages:
    for name in set(re.findall(r"\bCOUPLER_[A-Z0-9_]*[A-Z0-9]\b", page.read_text())):
        key = name.removeprefix("COUPLER_").lower().replace("_", ".", 1)
        if name not in sources and key not in sources:
            complain(page, f"nothing reads {name}")

print(f"{len(pages)} pages")
print("\n".join(problems))
sys.exit(bool(problems))
