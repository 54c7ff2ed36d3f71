"""Rows of results: what is printed, and what is written to bench/results."""
import dataclasses
import datetime
import json
import os
import platform
import statistics
import subprocess


@dataclasses.dataclass
class Bar:
    """The target for the median over the rounds: at least or at most `limit`."""
    sign: str  # ">=" or "<="
    limit: float
    of: str = "ratio"  # or "difference" (ours - peer) or "ours", in the row's unit
    text: str = ""

    def __str__(self):
        return self.text or f"{self.of} {self.sign} {self.limit:g}"

    def reached(self, value):
        return value >= self.limit if self.sign == ">=" else value <= self.limit


@dataclasses.dataclass
class Row:
    """One comparison: our value and the peer's value for each round, in order.

    The ratio is ours / peer, per round; its median is compared with the bar. For times it is
    peer / ours, so that more is better, unless `faster` is False.

    The limit is what ours could reach at best, measured in the same rounds.
    """
    name: str
    unit: str
    ours: list
    peer: list
    bar: Bar = None
    less_is_better: bool = False
    faster: bool = True
    extra: dict = dataclasses.field(default_factory=dict)
    limit: list = None
    limit_name: str = ""  # what the limit is

    def __post_init__(self):
        if self.limit is not None and len(self.limit) != len(self.ours):
            raise ValueError(f"{self.name}: {len(self.limit)} limits of {len(self.ours)} rounds")

    def ratios(self, ours=None):
        turned = self.less_is_better and self.faster
        return [p / o if turned else o / p for o, p in zip(ours or self.ours, self.peer)]

    def values(self, ours=None):
        """What the bar is compared with, for each round; also if ours were other values."""
        if self.bar and self.bar.of == "difference":
            return [o - p for o, p in zip(ours or self.ours, self.peer)]
        if self.bar and self.bar.of == "ours":
            return ours or self.ours
        return self.ratios(ours)

    def verdict(self):
        """"pass" if the median of the rounds reaches the bar, otherwise "miss"."""
        if not self.bar:
            return ""
        return "pass" if self.bar.reached(statistics.median(self.values())) else "miss"

    def as_json(self):
        values, ratios = self.values(), self.ratios()
        row = {"name": self.name, "unit": self.unit, "ours": figure(statistics.median(self.ours)),
               "peer": figure(statistics.median(self.peer)),
               "ratio": figure(statistics.median(ratios)), "ratio_min": figure(min(ratios)),
               "ratio_max": figure(max(ratios)), "bar": str(self.bar) if self.bar else None,
               "verdict": self.verdict() or None, "rounds": len(self.ours)}
        if self.bar and self.bar.of == "difference":
            row["difference"] = figure(statistics.median(values))
            row["difference_min"] = figure(min(values))
            row["difference_max"] = figure(max(values))
        if self.limit:
            row["limit"] = figure(statistics.median(self.limit))
            row["limit_of"] = self.limit_name
            row["value_at_limit"] = figure(statistics.median(self.values(self.limit)))
        return row | self.extra


def figure(value):
    return float(f"{value:.5g}")


def geometric_mean_row(name, rows, bar):
    """The geometric mean over rows of the same rounds, round by round, and over their limits if
    each row has one."""
    def means(lists):
        return [statistics.geometric_mean(values) for values in zip(*lists)]
    return Row(name, rows[0].unit, means([r.ours for r in rows]), means([r.peer for r in rows]),
               bar, rows[0].less_is_better,
               limit=means([r.limit for r in rows]) if all(r.limit for r in rows) else None,
               limit_name="the rows' limits")


def table(rows):
    head = ["", "ours", "peer", "limit", "unit", "ratio", "min", "max", "bar", "value", "at limit",
            "", ""]
    lines = [head]
    for row in rows:
        data = row.as_json()
        reached = limit = at_limit = limit_name = ""
        if row.bar:
            reached = f"{statistics.median(row.values()):.3g}"
        if row.limit:
            limit, at_limit = f"{data['limit']:.4g}", f"{data['value_at_limit']:.3g}"
            limit_name = "limit: " + row.limit_name
        lines.append([row.name, f"{data['ours']:.4g}", f"{data['peer']:.4g}", limit, row.unit,
                      f"{data['ratio']:.3g}", f"{data['ratio_min']:.3g}",
                      f"{data['ratio_max']:.3g}", data["bar"] or "", reached, at_limit,
                      row.verdict(), limit_name])
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    text = ""
    for line in lines:
        cells = [cell.ljust(w) if i in (0, 4, 8, 11, 12) else cell.rjust(w)
                 for i, (cell, w) in enumerate(zip(line, widths))]
        text += "  ".join(cells).rstrip() + "\n"
    return text


def machine():
    model = "unknown processor"
    with open("/proc/cpuinfo") as lines:
        for line in lines:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    described = {"cpu": model, "cores": len(os.sched_getaffinity(0)),
                 "memory_gib": round(memory / 2**30), "kernel": platform.release(),
                 "load": os.getloadavg()[0]}
    if found := gpus():
        described["gpus"] = found
    return described


def gpus():
    """Name, driver and memory of each NVIDIA GPU."""
    try:
        asked = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total",
                                "--format=csv,noheader"], capture_output=True, text=True,
                               timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return asked.stdout.strip().splitlines()


def commit(folder):
    def git(*words):
        return subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True,
                              timeout=30)
    try:
        head = git("rev-parse", "HEAD")
    except FileNotFoundError:  # machines for measurements may have no git
        return "unknown"
    if head.returncode != 0:
        return "unknown"
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".",
                  ":!bench/results").stdout.strip()
    return head.stdout.strip() + (" with changes" if changed else "")


def write(name, rows, source, results):
    today = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
    os.makedirs(results, exist_ok=True)
    path = os.path.join(results, f"{name}-{today}.json")
    content = {"machine": machine(), "commit": commit(source), "date": today,
               "rows": [row.as_json() for row in rows]}
    with open(path + ".new", "w") as file:
        json.dump(content, file, indent=1)
        file.write("\n")
    os.replace(path + ".new", path)
    return path
