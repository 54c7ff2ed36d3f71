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
        name = f"{page.stem.replace('-', '_')}_{line}"
        yield name, (f"static void {name}(Names& names) {{\n"
                     f"  auto& [{', '.join(NAMES)}] = names;\n  {{\n"
                     f'#line {line} "{page}"\n{block.group(1)}  }}\n}}\n')


NAMES = re.findall(r"(\w+);$", re.search(r"struct Names \{\n(.*?)\};", (
    pathlib.Path(__file__).parent / "fragments.h").read_text(), re.S).group(1), re.M)
parts = ['#include "fragments.h"\n']
table = []
for name in sys.argv[2:]:
    found = list(functions(pathlib.Path(name)))
    if not found:
        sys.exit(f"{name} has no block of cpp")
    parts += [text for _, text in found]
    table += [f'    {{"{pathlib.Path(name).stem}", {function.rpartition("_")[2]}, '
              f'{"true" if "torch::kCUDA" in text else "false"}, {function}}}' for function, text in found]
parts.append("const std::vector<Fragment>& fragments() {\n  static const std::vector<Fragment> all = {\n"
             + ",\n".join(table) + "};\n  return all;\n}\n")
pathlib.Path(sys.argv[1]).write_text("\n".join(parts))
