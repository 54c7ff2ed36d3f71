"""Writes a C++ file with every C++ block of some pages, each in a function of its own, so that what
the pages show compiles. fragments.h declares the names that the blocks take for granted.

    fragments.py FILE PAGE…
"""
import pathlib
import re
import sys


def functions(page):
    text = page.read_text()
    for block in re.finditer(r"^ *```cpp\n(.*?)^ *```$", text, re.M | re.S):
        line = text.count("\n", 0, block.start(1)) + 1
        yield (f"void {page.stem.replace('-', '_')}_{line}(Names& names) {{\n"
               f"  auto& [{', '.join(NAMES)}] = names;\n  {{\n"
               f'#line {line} "{page}"\n{block.group(1)}  }}\n}}\n')


NAMES = re.findall(r"(\w+);$", re.search(r"struct Names \{\n(.*?)\};", (
    pathlib.Path(__file__).parent / "fragments.h").read_text(), re.S).group(1), re.M)
parts = ['#include "fragments.h"\n']
for name in sys.argv[2:]:
    found = list(functions(pathlib.Path(name)))
    if not found:
        sys.exit(f"{name} has no block of cpp")
    parts += found
pathlib.Path(sys.argv[1]).write_text("\n".join(parts))
