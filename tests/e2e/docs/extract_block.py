"""Writes the first fenced block of a language in a Markdown page to a file; with --all, all blocks.

    extract_block.py PAGE LANGUAGE FILE [--all]
"""
import pathlib
import re
import sys

page, language, target = sys.argv[1:4]
blocks = re.findall(rf"```{re.escape(language)}\n(.*?)```", pathlib.Path(page).read_text(), re.S)
if not blocks:
    sys.exit(f"{page} has no block of {language}")
pathlib.Path(target).write_text("\n".join(blocks if sys.argv[4:] == ["--all"] else blocks[:1]))
