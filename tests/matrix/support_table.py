"""Prints the table of README's "What is supported" in Markdown: coupler_matrix's findings for each backend of
a build at two ranks, for every behavior; nccl over the tests' double of NCCL, hierarchical with three ranks on
two made-up machines.

    support_table.py BUILD_DIR

If a backend fails a behavior, the program ends with its message.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

build = pathlib.Path(sys.argv[1])
# By backend: its name in the table, further arguments for coupler_matrix, environment variables.
COLUMNS = {
    "gloo_cpu": ("gloo_cpu", ("--complete",), {}),
    "shm": ("shm", ("--complete",), {}),
    "mpi": ("mpi", ("--complete",), {}),
    "nccl": ("nccl, over a double", ("--complete",), {"COUPLER_NCCL_PATH": str(build / "lib/nccl_double")}),
    "hierarchical": ("hierarchical over shm and gloo_cpu",
                     ("--complete", "--world", "3", "--machines", "2,1", "--option",
                      "backend.hierarchical.across=gloo_cpu"), {}),
    "fsdp": ("fsdp over gloo_cpu", ("--option", "backend.fsdp.base=gloo_cpu"), {}),
    "deepspeed_like": ("deepspeed_like over gloo_cpu", ("--option", "backend.deepspeed_like.base=gloo_cpu"), {}),
}
GROUPS = (("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_v"),
          ("broadcast", "all_gather", "all_gather_v", "gather", "scatter"),
          ("all_to_all", "all_to_all_v"),
          ("barrier",))
REDUCING = GROUPS[0]


def find_out(backend, folder):
    _, more, variables = COLUMNS[backend]
    plugin = build / f"lib/coupler/libcoupler_{backend}.so"
    done = subprocess.run([build / "bin/tests/coupler_matrix", "--plugin", plugin, "--world", "2", "--json",
                           "--launcher", build / "bin/coupler", *more], cwd=folder, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, env={**os.environ, **variables})
    if done.returncode != 0:
        sys.exit(f"{backend}:\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout)


def cells_of(found):
    return next(entry["cells"] for entry in found["behaviours"] if entry["name"] == "operations")


def named(names, all_names):
    """"all 9", "none", "all but a, b" or "a, b", whichever is shortest to read."""
    missing = [name for name in all_names if name not in names]
    if not missing:
        return f"all {len(all_names)}"
    if not names:
        return "none"
    few = len(missing) < len(names)
    return f"all but {', '.join(missing)}" if few else ", ".join(name for name in all_names if name in names)


def in_order(cells, key):
    return list(dict.fromkeys(cell[key] for cell in cells if cell[key] != "-"))


def kinds(cells, names):
    run = [name for name in names if any(cell["run"] for cell in cells if cell["operation"] == name)]
    return "yes" if len(run) == len(names) else ", ".join(run) or "no"


def moved(cells):
    return {cell["dtype"] for cell in cells if cell["run"] and cell["operation"] in GROUPS[1]}


def reduced(cells):
    """The supported types of each reduction."""
    types = {}
    for cell in cells:
        if cell["run"] and cell["operation"] in REDUCING:
            types.setdefault(cell["reduction"], set()).add(cell["dtype"])
    return types


def reductions_of(cells, whole):
    """whole: reduced() of a backend that has everything; reductions with fewer types are listed."""
    types = reduced(cells)
    any_type = set().union(*types.values())
    partly = [name for name in whole if name in types and types[name] != whole[name] & any_type]
    text = named(set(types), list(whole))
    for name in partly:
        text += f"; {name} of {', '.join(sorted(types[name]))} only"
    return text


with tempfile.TemporaryDirectory(prefix="coupler-support-") as folder:
    found = {backend: find_out(backend, folder) for backend in COLUMNS
             if (build / f"lib/coupler/libcoupler_{backend}.so").exists()}
missing = set(COLUMNS) - set(found)
if missing:
    sys.exit(f"{build} has no {', '.join(sorted(missing))}: the table needs all backends")

every = {backend: cells_of(result) for backend, result in found.items()}
dtypes = in_order(every["gloo_cpu"], "dtype")
whole = reduced(every["gloo_cpu"])
rows = [[", ".join(group)] + [kinds(cells, group) for cells in every.values()] for group in GROUPS]
rows.append(["types that are moved"] + [named(moved(cells), dtypes) for cells in every.values()])
rows.append(["types that are reduced"] + [named(set().union(*reduced(cells).values()), dtypes) for cells in every.values()])
rows.append(["reductions"] + [reductions_of(cells, whole) for cells in every.values()])
for entry in found["gloo_cpu"]["behaviours"]:
    if entry["name"] != "operations":
        # A failed behavior would have ended the program before.
        rows.append([entry["promise"]] + ["yes"] * len(found))
rows.append(["combinations run, refused"]
            + [f"{sum(cell['run'] for cell in cells)}, {sum(cell['refused'] for cell in cells)}"
               for cells in every.values()])
print("| | " + " | ".join(COLUMNS[backend][0] for backend in found) + " |")
print("|---" * (len(found) + 1) + "|")
for row in rows:
    print("| " + " | ".join(row) + " |")
