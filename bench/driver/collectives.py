"""All-reduce of floats between two ranks: ours and others', in turns in the same processes."""
import json
import os

from . import children
from .report import Bar, Row, geometric_mean_row

QUICK_BYTES = "8,1024,65536,1048576,16777216"
# Contenders that the programs add with --peer-memory and --beside.
PEER_MEMORY = "coupler on peer memory"
COPY = "copy"
GLOO_CPU = "coupler over gloo_cpu"
# What staged_limit() is.
STAGED = "on its memory or a copy, and one more copy"


def launch(context, ranks, launched_over, program, *arguments, how=()):
    """The command line of a contest program. how: more arguments of the launch."""
    # Two programs link the host statically, without libcoupler, next to which plugins are searched.
    plugins = json.dumps([os.path.join(context.build, "lib", "coupler")])
    return context.launch(ranks, launched_over, *how, "-o", "backend.plugin_path=" + plugins,
                          context.program("bench/" + program), *arguments)


def contest(context, program, launched_over, *arguments):
    """{contender: {bytes: result}} of a contest program on two ranks."""
    return results_of(context, launch(context, 2, launched_over, program, *arguments), 15)


def results_of(context, command, rounds, sizes=None, env=None):
    """{contender: {bytes: result}} of a contest program's command line. sizes: instead of the usual ones."""
    out = os.path.join(context.folder, "contest.json")
    command = [*command, "--out", out, "--rounds", str(context.rounds_or(rounds))]
    if not context.pin:
        command.append("--no-pin")
    if context.quick:
        command += ["--bytes", QUICK_BYTES, "--milliseconds", "20"]
    if sizes:
        command += ["--bytes", ",".join(map(str, sizes))]
    children.run(command, context.folder, 120 if context.quick else 1200, env)
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
    results = contest(context, "bench_against_mpi", "mpi", "--peer-memory", "-o", "backend.use=shm")
    bar = Bar(">=", 1.0)
    rows = []
    for ours, title in (("coupler blocking", "shm / MPI_Allreduce"),
                        (PEER_MEMORY, "shm on its memory / MPI_Allreduce")):
        each = compare(results, ours, ["MPI_Allreduce"], lambda _: bar, title,
                       "interface and bare exchange")
        for row in each:  # whose ranks read all of the other's data, which only small data is worth
            size = row.extra["bytes"]
            if size > 1024 and ours == PEER_MEMORY:
                row.limit = None
            elif size > 1024:
                row.limit, row.limit_name = staged_limit(results, size), STAGED
        rows += [*each, geometric_mean_row(f"{title}, geometric mean", each, Bar(">=", 1.6))]
    latency = compare({name: {8: sizes[8]} for name, sizes in results.items()}, "coupler blocking",
                      ["MPI_Allreduce"], lambda _: Bar("<=", 1.2, "ours", "latency <= 1.2 us"),
                      "shm, latency,")
    return (rows + bandwidth_rows(results) + latency + crowded_rows(context) +
            compare(results, "coupler asynchronous", ["MPI_Iallreduce+MPI_Wait"], lambda _: None,
                    "shm asynchronous / MPI_Iallreduce+Wait"))


def staged_limit(results, size):
    """The least that shared memory takes for a buffer of the program, round by round.

    A rank reads and writes as many bytes as the buffer has, by an all_reduce in memory that the
    ranks share or by a copy, whichever is faster; and once more to get them there and back.
    """
    rounds = lambda name: results[name][size]["medians_us"]
    return [min(direct, copy) + copy for direct, copy in zip(rounds(PEER_MEMORY), rounds(COPY))]


def bandwidth_rows(results):
    """What a rank reads and writes in an all_reduce, as many bytes each, against a copy of them."""
    rows = []
    for size in results[COPY]:
        if size < 1 << 20:
            continue
        rate = lambda name: [2e-3 * size / us for us in results[name][size]["medians_us"]]
        rows.append(Row(f"shm on its memory, bytes read and written / by a copy, {size_name(size)}", "GB/s",
                        rate(PEER_MEMORY), rate(COPY), Bar(">=", 0.85), extra={"bytes": size}))
    return rows


def crowded_rows(context):
    """8 ranks on 2 cores, where a rank that waits must leave its core to another one."""
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[:2]))
    # Not bound to one core each: backends count the cores that a rank may use.
    command = launch(context, 8, "mpi", "bench_against_mpi", "-o", "backend.use=shm", "--no-pin")
    results = results_of(context, ["taskset", "-c", cores, *command], 15, (8,),
                         children.environment(OMPI_MCA_mpi_yield_when_idle="1"))
    return compare(results, "coupler blocking", ["MPI_Allreduce"], lambda _: Bar(">=", 1.0),
                   "8 ranks on 2 cores, shm / MPI_Allreduce that yields,")


def shm_gloo(context):
    """shm against our gloo_cpu and c10d's ProcessGroupGloo, in the same processes."""
    results = contest(context, "bench_against_c10d", "shm", "--peer-memory", "--beside", "gloo_cpu")
    rows = []
    for peer, name, least in ((GLOO_CPU, "gloo_cpu", 2.5), ("c10d ProcessGroupGloo", "c10d", 20)):
        title = f"shm on its memory / {name}"
        each = compare(results, PEER_MEMORY, [peer], lambda _: None, title)
        rows += [*each, geometric_mean_row(f"{title}, geometric mean", each, Bar(">=", least))]
    return rows


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
