"""Every block of a page has a test: blocks.toml lists for each page how each of its fenced blocks is tested, and
this program compares the list with the pages and the tests. The ways:

    loads             docs_test loads it as a configuration
    commands          check_pages.py checks its commands
    fragment          fragments.py puts it into a function, which is compiled
    members           fragments.py puts it into a struct, which is compiled
    printed           the output of the fragment above, which a test of docs_big_models compares
    taken NAME        NAME, in a CMakeLists.txt of the tests, is made from it or compares it
    excerpt PATH      it occurs in the sources below PATH
    said PATH...      each line is part of a message in the sources below PATH
    parsed            JSON that this program parses
    drawing           a diagram, which no program prints

    check_blocks.py SOURCE_DIR
"""
import json
import pathlib
import re
import sys

from blocks import blocks_of, pages_of, table

root = pathlib.Path(sys.argv[1])
LANGUAGES = {"loads": {"toml"}, "commands": {"sh", "bash"}, "fragment": {"cpp"}, "members": {"cpp"},
             "printed": {"text"}, "excerpt": {"text"}, "said": {"text"}, "parsed": {"json"}, "drawing": {"text"},
             "taken": {"cpp", "c", "diff", "cmake", "python"}}
problems = []


def squeeze(text):
    return re.sub(r"\s+", "", text)


def sources(path):
    files = [root / path] if (root / path).is_file() else sorted((root / path).rglob("*"))
    return "".join(file.read_text() for file in files if file.suffix in (".c", ".cc", ".h", ".py"))


def literal_pieces(paths):
    """The parts of string literals between placeholders, longest first."""
    code = re.sub(r'"\s*\n\s*"', "", "".join(map(sources, paths)))
    # Also matches comments and characters, in which a quotation mark does not begin a literal.
    texts = re.findall(r"""//[^\n]*|'(?:[^'\\\n]|\\.)'|R"\((.*?)\)"|"((?:[^"\\\n]|\\.)*)\"""", code, re.S)
    pieces = {piece for raw, plain in texts
              for piece in re.split(r"\{[^{}]*\}|%[-.\d]*[a-z]+|\\n", raw or plain.replace('\\"', '"'))}
    return sorted((piece for piece in pieces if len(piece) > 2 and re.search("[a-z]", piece)), key=len, reverse=True)


def said_by_nobody(text, paths):
    """The lines that consist of literals for less than half."""
    pieces = literal_pieces(paths)
    for line in text.splitlines():
        left = re.split(r"…|(?<=\S)\s{3}", line)[0]  # up to what the page omits or explains
        letters = len(re.findall("[A-Za-z]", left))
        for piece in pieces:
            left = left.replace(piece, "\0")
            begin = left.find(piece[:12])
            if begin >= 0 and piece.startswith(left[begin:]):
                left = left[:begin]  # the page omits the rest of the message
        if letters and 2 * len(re.findall("[A-Za-z]", left)) >= letters:
            yield line


def check(where, block, way, arguments):
    if way == "taken":
        made = "".join(file.read_text() for file in sorted((root / "tests").rglob("CMakeLists.txt")))
        if not re.search(rf"\b{re.escape(arguments[0])}\b", made):
            problems.append(f"{where}: no CMakeLists.txt of the tests names {arguments[0]}")
    elif way == "excerpt":
        if squeeze(block.text) not in squeeze(sources(arguments[0])):
            problems.append(f"{where}: this is not in {arguments[0]}:\n{block.text}")
    elif way == "said":
        for line in said_by_nobody(block.text, arguments):
            problems.append(f"{where}: no message in {' or '.join(arguments)} reads: {line.strip()}")
    elif way == "parsed":
        try:
            json.loads(block.text)
        except ValueError as error:
            problems.append(f"{where}: {error}")
    elif way == "loads" and "`" in block.text:
        problems.append(f"{where}: docs_test does not find a block that holds a backtick")


listed = table()
count = 0
for page in pages_of(root):
    name = str(page.relative_to(root))
    blocks = blocks_of(page.read_text())
    rows = listed.pop(name, [])
    count += len(blocks)
    if page.read_text().count("```") != 2 * len(blocks):
        problems.append(f"{name}: a fence is not on its own line")
    for block, row in zip(blocks, rows):
        where = f"{name}:{block.line}"
        language, way, *arguments = row.split()
        if language != (block.language or "text"):
            problems.append(f"{where}: the block is '{block.language}', but tests/e2e/docs/blocks.toml has '{row}' here")
        elif language not in LANGUAGES.get(way, ()):
            problems.append(f"{where}: '{way}' in blocks.toml cannot test a block of {language}")
        else:
            check(where, block, way, arguments)
    if len(blocks) != len(rows):
        problems.append(f"{name} has {len(blocks)} blocks, but tests/e2e/docs/blocks.toml lists {len(rows)}: "
                        "list how each is tested")
problems += [f"blocks.toml lists {name}, which does not exist" for name in listed]

# Proves that the check can fail.
if not list(said_by_nobody("a message of no program at all", ["cli"])):
    problems.append("said: any text passes")
print(f"{count} blocks")
print("\n".join(problems))
sys.exit(bool(problems))
