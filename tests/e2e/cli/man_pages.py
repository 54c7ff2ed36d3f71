"""The man pages: one for coupler and one for each command, with name, forms, words and examples; man, groff
and mandoc report no warnings. Skipped if none of these is installed.

    man_pages.py COUPLER_PROGRAM SOURCE_DIR
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile

program = sys.argv[1]
problems = []


def check(condition, text):
    if not condition:
        problems.append(text)


def run(*command, **options):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60, **options)


with tempfile.TemporaryDirectory(prefix="coupler-man-") as folder:
    written = run(program, "completion", "man", folder)
    check(written.returncode == 0 and written.stdout == "", f"pages cannot be written: {written.stderr}")
    commands = [line.split("\t")[0] for line in run(program, "complete", "").stdout.splitlines()]
    pages = sorted(pathlib.Path(folder).iterdir())
    names = {page.name for page in pages}
    for name in ["coupler.1", "coupler-config-recommend.1", *(f"coupler-{command}.1" for command in commands)]:
        check(name in names, f"there is no page {name}")
    tools = [tool for tool in (["man", "--warnings", "-E", "UTF-8", "-l"], ["groff", "-man", "-ww", "-z", "-Tutf8"],
                               ["mandoc", "-T", "lint", "-W", "warning"]) if shutil.which(tool[0])]
    for page in pages:
        text = page.read_text(encoding="ascii")
        for section in ("NAME", "SYNOPSIS", "DESCRIPTION", "EXAMPLES", "SEE ALSO"):
            check(f"\n.SH {section}\n" in text, f"{page.name} has no {section}")
        for tool in tools:
            said = run(*tool, page, env={"PATH": "/usr/bin:/bin", "MANWIDTH": "80", "LC_ALL": "C.UTF-8"})
            complaints = said.stderr + (said.stdout if tool[0] == "mandoc" else "")
            # The date is omitted, so that builds are reproducible to the byte.
            complaints = "\n".join(line for line in complaints.splitlines() if "missing date" not in line)
            check(said.returncode == 0 or tool[0] == "mandoc", f"{tool[0]} ends with {said.returncode} on {page.name}")
            check(complaints == "", f"{tool[0]} on {page.name}:\n{complaints}")
            if tool[0] == "man" and page.name == "coupler-checkpoint.1":
                for part in ("coupler checkpoint list [DIR]", "--max-shard-size SIZE", "dict's", "checkpoint_1, …",
                             "coupler checkpoint verify checkpoints"):
                    check(part in said.stdout, f"'{part}' is not in\n{said.stdout}")
    broken = run(program, "completion", "man", "/proc/nowhere")
    check(broken.returncode == 1 and "/proc/nowhere" in broken.stderr, f"a wrong folder: {broken.stderr}")

if problems:
    print("\n".join(problems))
    sys.exit(1)
if not tools:
    print("the pages are written, but none of man, groff and mandoc is installed to check them")
    sys.exit(77)
print(f"{len(pages)} pages, checked by {', '.join(tool[0] for tool in tools)}")
