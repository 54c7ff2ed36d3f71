#!/usr/bin/env python3
"""The options of `accelerate launch`, one a line: names, "value" if it takes one, and its choices. accelerate_flags.txt is what
this prints with Accelerate 1.15; foreign_options_test.cc holds our table against it.

  accelerate_flags.py           prints the options of the installed Accelerate
  accelerate_flags.py --check   compares them with accelerate_flags.txt; exits with 77 if Accelerate is not installed

COUPLER_TEST_PYTHON names a Python that has Accelerate, if this one does not.
"""
import importlib.util
import os
import pathlib
import sys

if importlib.util.find_spec("accelerate") is None:
    other = os.environ.pop("COUPLER_TEST_PYTHON", "")
    if other:
        os.execv(other, [other, *sys.argv])
    print("Accelerate is not installed")
    sys.exit(77)

check = sys.argv[1:] == ["--check"]
sys.argv = ["accelerate", "launch"]
import accelerate
from accelerate.commands.launch import launch_command_parser


def line(action):
    names = [name for name in action.option_strings if "-" not in name[2:]]
    words = [", ".join(names)]
    if action.nargs != 0:
        words.append("value")
    if action.choices:
        words.append("|".join(action.choices))
    return " ".join(words)


lines = [line(action) for action in launch_command_parser()._actions if action.option_strings]
if not check:
    print("\n".join(lines))
    sys.exit(0)
stored = (pathlib.Path(__file__).parent / "accelerate_flags.txt").read_text().splitlines()
for one in sorted(set(lines) ^ set(stored)):
    print(f"{'only in Accelerate ' + accelerate.__version__ if one in lines else 'only in accelerate_flags.txt'}: {one}")
sys.exit(set(lines) != set(stored) and accelerate.__version__.startswith("1.15."))
