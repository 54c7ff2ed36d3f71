#!/usr/bin/env python3
"""The duration of tests, as ctest reports it.

    costs.py dearest       copies a run of ctest from standard input, then lists the 30 longest tests
    costs.py take REPORT   writes costs.txt, from which ctest knows the longest tests, from a report of
                           `scripts/test --full`
"""
import pathlib
import re
import sys

# A line of ctest's output, and of the reports in tests/reports.
LINE = re.compile(r"^ *(?:\d+/\d+ +Test +#)?\d+:? +(\S+) .*? ([0-9.]+) s(?:ec)?\s*$")
SHORTEST = 10  # seconds; shorter ones fill the gaps


def costs_in(lines):
    """[(seconds, name)], the longest first."""
    found = [(float(match[2]), match[1]) for match in map(LINE.match, lines) if match]
    return sorted(found, reverse=True)


def dearest():
    lines = []
    for line in sys.stdin:
        sys.stdout.write(line)
        sys.stdout.flush()
        lines.append(line)
    costs = costs_in(lines)
    if not costs:
        sys.exit("costs.py: ctest ran no test")
    print(f"\n{len(costs)} tests took {sum(seconds for seconds, _ in costs):.0f} s in total; the longest:")
    for seconds, name in costs[:30]:
        print(f"{seconds:9.2f} s  {name}")


def take(report):
    costs = costs_in(pathlib.Path(report).read_text().splitlines())
    if not costs:
        sys.exit(f"costs.py: {report} is not a report of `scripts/test --full`: it has no line of a finished test")
    (pathlib.Path(__file__).parent / "costs.txt").write_text(
        "".join(f"{seconds:.0f} {name}\n" for seconds, name in costs if seconds >= SHORTEST))


if sys.argv[1:] == ["dearest"]:
    dearest()
elif len(sys.argv) == 3 and sys.argv[1] == "take":
    take(sys.argv[2])
else:
    sys.exit(__doc__)
