"""The Markdown pages of the tree, their fenced blocks, and the table blocks.toml of the tests of each block.
A module for check_blocks.py, check_pages.py and fragments.py."""
import dataclasses
import pathlib
import re
import tomllib

FOLDERS = ("api", "bench", "cli", "docs", "examples", "host", "models", "packaging", "plugins", "tests")


@dataclasses.dataclass
class Block:
    line: int  # of the first line inside
    language: str
    text: str


def pages_of(root):
    found = sorted(root.glob("*.md"))
    for folder in FOLDERS:
        found += sorted((root / folder).rglob("*.md"))
    return found


def without_blocks(text):
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.M | re.S)


def blocks_of(text):
    return [Block(text.count("\n", 0, found.start(2)) + 1, found[1], found[2])
            for found in re.finditer(r"^ *```(\S*)\n(.*?)^ *```$", text, re.M | re.S)]


def table():
    """By page with blocks: a list with a string "LANGUAGE WAY [ARGUMENT]..." for each block."""
    return tomllib.loads((pathlib.Path(__file__).parent / "blocks.toml").read_text())


def ways_of(page, root):
    """The page's blocks, each with the words after the language in the table."""
    rows = table().get(str(page.relative_to(root)), [])
    return [(block, row.split()[1:]) for block, row in zip(blocks_of(page.read_text()), rows)]
