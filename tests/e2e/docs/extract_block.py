"""Writes the first fenced block of a language in a Markdown page to a file.

    extract_block.py PAGE LANGUAGE FILE
"""
import pathlib
import re
import sys

page, language, target = sys.argv[1:]
block = re.search(rf"```{re.escape(language)}\n(.*?)```", pathlib.Path(page).read_text(), re.S)
if not block:
    sys.exit(f"{page} has no block of {language}")
pathlib.Path(target).write_text(block[1])
