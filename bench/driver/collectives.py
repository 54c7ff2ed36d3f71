"""All-reduce of floats between two ranks: ours and others', in turns in the same processes."""
import json
import os

from . import children
from .report import Bar, Row, geometric_mean_row

QUICK_BYTES = "8,1024,65536,1048576,16777216"


def contest(context, program, launched_over, *arguments):
    """{contender: {bytes: result}} of a contest program."""
    out = os.path.join(context.folder, program + ".json")
    # Two programs link the host statically, without libcoupler, next to which plugins are searched.
    plugins = json.dumps([os.path.join(context.build, "lib", "coupler")])
    command = context.launch(2, launched_over, "-o", "backend.plugin_path=" + plugins,
                             context.program("bench/" + program), *arguments, "--out", out, "--rounds",
                             str(context.rounds_or(15)))
    if not context.pin:
        command.append("--no-pin")
    if context.quick:
        command += ["--bytes", QUICK_BYTES, "--milliseconds", "20"]
    children.run(command, context.folder, 120 if context.quick else 1200)
    with open(out) as file:
        rows = json.load(file)
    results = {}
    for row in rows:
        results.setdefault(row["name"], {})[row["bytes"]] = row
    return results


def size_name(size):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def compare(results, ours, peers, bar_of, title, limit=None):
    """One row per size, against the fastest peer at that size. limit: a contender."""
    rows = []
    for size, mine in results[ours].items():
        middle = lambda name: sorted(results[name][size]["medians_us"])[
            len(results[name][size]["medians_us"]) // 2]
        best = min(peers, key=middle)
        other = results[best][size]
        extra = {"bytes": size, "peer_name": best, "ours_p99": mine["p99_us"],
                 "peer_p99": other["p99_us"]}
        rows.append(Row(f"{title} {size_name(size)}", "us", mine["medians_us"],
                        other["medians_us"], bar_of(size), less_is_better=True, extra=extra,
                        limit=limit and results[limit][size]["medians_us"],
                        limit_name=limit or ""))
    return rows


def mpi(context):
    """Overhead over MPI: our communicator against the MPI calls it makes."""
    results = contest(context, "bench_against_mpi", "mpi")
    blocking = Bar("<=", 1, "difference", "own cost <= 1 us")
    deferred = Bar("<=", 10, "difference", "own cost <= 10 us")
    return (compare(results, "coupler blocking", ["MPI_Allreduce"], lambda _: blocking,
                    "blocking / MPI_Allreduce", "MPI_Barrier+MPI_Allreduce") +
            compare(results, "coupler asynchronous", ["MPI_Iallreduce+MPI_Wait"],
                    lambda _: deferred, "asynchronous / MPI_Iallreduce+Wait"))


def shm(context):
    """shm against Open MPI, in turns in the processes that mpirun starts."""
    results = contest(context, "bench_against_mpi", "mpi", "-o", "backend.use=shm")
    bar = Bar(">=", 1.0)
    rows = compare(results, "coupler blocking", ["MPI_Allreduce"], lambda _: bar,
                   "shm / MPI_Allreduce", "interface and bare exchange")
    for row in rows:  # whose ranks read all of the other's data, which only small data is worth
        if row.extra["bytes"] > 1024:
            row.limit = None
    mean = geometric_mean_row("shm / MPI_Allreduce, geometric mean", rows, Bar(">=", 1.6))
    latency = compare({name: {8: sizes[8]} for name, sizes in results.items()}, "coupler blocking",
                      ["MPI_Allreduce"], lambda _: Bar("<=", 1.2, "ours", "latency <= 1.2 us"),
                      "shm, latency,")
    return rows + [mean] + latency + compare(results, "coupler asynchronous", ["MPI_Iallreduce+MPI_Wait"],
                                             lambda _: None, "shm asynchronous / MPI_Iallreduce+Wait")


def gloo(context):
    """gloo_cpu against the fastest of libgloo's own algorithms at each size."""
    results = contest(context, "bench_against_gloo", "gloo_cpu")
    peers = ["gloo ring", "gloo halving-doubling", "gloo bcube"]
    bar = Bar(">=", 1 / 1.03, text="at most 3 % slower")
    rows = compare(results, "coupler blocking", peers, lambda size: bar if size >= 65536 else None,
                   "blocking / libgloo")
    rows.append(geometric_mean_row("blocking / libgloo, geometric mean", rows, None))
    return rows + compare(results, "coupler asynchronous", peers, lambda _: None,
                          "asynchronous / libgloo")


def c10d(context):
    """gloo_cpu against c10d's ProcessGroupGloo, which PyTorch's DDP uses."""
    results = contest(context, "bench_against_c10d", "gloo_cpu")
    bar = Bar(">=", 1.0)
    rows = compare(results, "coupler blocking", ["c10d ProcessGroupGloo"], lambda _: bar,
                   "blocking / c10d")
    rows.append(geometric_mean_row("blocking / c10d, geometric mean", rows, Bar(">=", 1.5)))
    deferred = compare(results, "coupler asynchronous", ["c10d ProcessGroupGloo"], lambda _: None,
                       "asynchronous / c10d")
    return rows + deferred + [
        geometric_mean_row("asynchronous / c10d, geometric mean", deferred, None)]
