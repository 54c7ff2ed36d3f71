"""Writes C++ for big_models_page.cc to include, so that the code in the pages is compiled: each C++ block
that blocks.toml calls a fragment in its own function, and each that it calls members in a struct.
fragments.h declares the names that the blocks assume.

    fragments.py SOURCE_DIR FILE
"""
import pathlib
import re
import sys

from blocks import pages_of, ways_of

root = pathlib.Path(sys.argv[1])
target = pathlib.Path(sys.argv[2])
NAMES = re.findall(r"(\w+);$", re.search(r"struct Names \{\n(.*?)\};", (
    pathlib.Path(__file__).parent / "fragments.h").read_text(), re.S).group(1), re.M)
# No structured binding: in clang before version 16 lambdas cannot capture one.
USED_NAMES = "".join(f"  [[maybe_unused]] auto& {name} = names.{name};\n" for name in NAMES)
# They may have variables that they do not use.
parts = ["#pragma GCC system_header\n"]
table = []
for page in pages_of(root):
    for block, way in ways_of(page, root):
        name = f"{page.stem.replace('-', '_')}_{block.line}"
        code = f'#line {block.line} "{page}"\n{block.text}'
        if way[0] == "members":
            parts.append(f"struct {name} {{\n{code}}};\n")
        elif way[0] == "fragment":
            parts.append(f"static void {name}(Names& names) {{\n{USED_NAMES}  {{\n{code}  }}\n}}\n")
            needs_gpu = "true" if "torch::kCUDA" in block.text else "false"
            table.append([f'"{page.stem}"', str(block.line), needs_gpu, name, '""'])
        elif way[0] == "printed":
            table[-1][-1] = f'R"({block.text})"'
if not table:
    sys.exit("blocks.toml has no fragment")
rows = ",\n".join(f"    {{{', '.join(row)}}}" for row in table)
parts.append("static const std::vector<Fragment>& fragments() {\n  static const std::vector<Fragment> all = {\n"
             f"{rows}}};\n  return all;\n}}\n")
text = "\n".join(parts)
# An unchanged file is not compiled again.
if not target.exists() or target.read_text() != text:
    target.write_text(text)
