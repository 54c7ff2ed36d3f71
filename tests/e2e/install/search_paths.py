"""Programs and libraries never look for libraries in the working folder, where another user may have put
one. An empty or relative element of a RUNPATH would make them look there.

search_paths.py FOLDER…: checks every ELF file in the folders."""
import pathlib
import re
import subprocess
import sys


def elements(path):
    words = subprocess.run(["readelf", "--dynamic", "--wide", path], capture_output=True, text=True,
                           check=True).stdout
    for text in re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", words):
        yield from text.split(":")


def is_elf(path):
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def main(folders):
    files = sorted({path.resolve() for folder in folders for path in pathlib.Path(folder).rglob("*")
                    if path.is_file() and is_elf(path)})
    wrong = [f"{path}: {element!r}" for path in files for element in elements(path)
             if not element.startswith(("/", "$ORIGIN"))]
    print(f"{len(files)} files")
    for line in wrong:
        print("looks for libraries in", line)
    return 1 if wrong or not files else 0


sys.exit(main(sys.argv[1:]))
