"""Collectives and sharded steps on simulated machines: bench/simulated, docs/scaling.md."""
import json
import os
import threading

from . import children, two_hosts
from .collectives import size_name
from .report import Row

FLAT = ("ring", "halving-doubling", "direct")
OURS = "hierarchical/direct"
SCHEDULES = FLAT + ("hierarchical/ring", "hierarchical/halving-doubling", OURS)
EACH = 8  # ranks of a machine
MACHINES = (1, 2, 8, 32, 128, 512)
GBIT = (10, 100, 400)
BYTES = tuple(1 << n for n in range(10, 31, 2))
SMALL = 32768  # the default of backend.hierarchical.small_bytes
# A GPT of 1.2 billion parameters in bf16: 24 units of 50 million.
UNITS, UNIT_BYTES, FORWARD_MS = 24, 100 << 20, 20
# What is complete, with every machine and message, to compare with: machines, bytes.
COMPLETE = {"ring": (16, 1 << 24), "halving-doubling": (512, 1 << 24), "direct": (8, 1 << 22),
            "hierarchical/ring": (32, 1 << 24), OURS: (32, 1 << 24)}
# Two machines of two ranks, joined by a wire of 1 Gbit/s.
WIRE = {"gloo_cpu": ("direct", ("backend.use=gloo_cpu",)),
        "gloo_cpu, libgloo's ring": ("ring", ("backend.use=gloo_cpu", "backend.gloo_cpu.algorithm=gloo")),
        "hierarchical over gloo_cpu": (OURS, ("backend.use=hierarchical", "backend.hierarchical.across=gloo_cpu"))}
WIRE_BYTES = (1 << 20, 4 << 20, 16 << 20)


def times(context, schedules, *options, limit=600):
    """What the program prints: [{schedule, machines, ranks, gbit, bytes…, seconds}]."""
    path = os.path.join(context.build, "bin", "bench", "bench_simulated")
    if not os.path.exists(path):
        raise children.Failed(f"{path} is missing: it needs SimGrid. Run apt-get install libsimgrid-dev (62 MB with "
                              "what it needs), then scripts/build release benchmarks")
    output = children.run([path, "--schedules", ",".join(schedules), *options], context.folder, limit)
    return [json.loads(line) for line in output.splitlines()]


def listed(values):
    return ",".join(map(str, values))


def all_reduce_rows(context):
    """For each size: hierarchical over gloo_cpu against the fastest flat schedule."""
    machines = (2, 8) if context.quick else MACHINES
    found = {}
    for one in times(context, SCHEDULES, "--each", str(EACH), "--machines", listed(machines), "--gbit", listed(GBIT),
                     "--bytes", listed(BYTES)):
        found.setdefault((one["ranks"], one["gbit"], one["bytes"]), {})[one["schedule"]] = 1e3 * one["seconds"]
    rows = []
    for (ranks, gbit, size), by_schedule in found.items():
        best = min(FLAT, key=by_schedule.get)
        rows.append(Row(f"all_reduce, {ranks} ranks, {gbit} Gbit/s, {size_name(size)}: hierarchical / flat", "ms",
                        [by_schedule[OURS]], [by_schedule[best]], None, less_is_better=True,
                        extra={"ranks": ranks, "gbit": gbit, "bytes": size, "peer_name": best,
                               "times": {name: float(f"{ms:.4g}") for name, ms in by_schedule.items()}}))
    return rows


def lanes_rows(context):
    """From which size on several lanes are faster than the leader, which small_bytes should be."""
    sizes = [1 << n for n in range(6, 23)]
    rows = []
    for across in "direct", "halving-doubling":
        found = []
        for small in 0, 1 << 40:
            found.append({(one["ranks"], one["gbit"], one["bytes"]): one["seconds"] for one in times(
                context, [f"hierarchical/{across}"], "--each", str(EACH), "--machines", listed(MACHINES[1:]), "--gbit",
                listed(GBIT), "--bytes", listed(sizes), "--small", str(small))})
        for ranks, gbit in dict.fromkeys(key[:2] for key in found[0]):
            wins = [all(found[0][ranks, gbit, size] < found[1][ranks, gbit, size] for size in sizes[i:])
                    for i in range(len(sizes))]
            first = sizes[wins.index(True)] if True in wins else None  # None: at no size
            rows.append(Row(f"hierarchical/{across}, {ranks} ranks, {gbit} Gbit/s: lanes are faster from / small_bytes",
                            "B", [first or 2 * sizes[-1]], [SMALL],
                            extra={"ranks": ranks, "gbit": gbit, "across": across, "lanes_from": first}))
    return rows


def step_rows(context):
    """Sharded steps over hierarchical, against the same over gloo_cpu."""
    found = {}
    for one in times(context, ["direct", OURS], "--each", str(EACH), "--machines",
                     listed((2,) if context.quick else MACHINES), "--gbit", listed(GBIT), "--step",
                     f"{UNITS},{UNIT_BYTES},{FORWARD_MS}"):
        found.setdefault((one["ranks"], one["gbit"]), {})[one["schedule"]] = one["seconds"]
    return [Row(f"sharded step, {ranks} ranks, {gbit} Gbit/s: over hierarchical / over gloo_cpu", "s", [both[OURS]],
                [both["direct"]], None, less_is_better=True,
                extra={"ranks": ranks, "gbit": gbit, "units": UNITS, "unit_bytes": UNIT_BYTES,
                       "computing": 3e-3 * UNITS * FORWARD_MS})
            for (ranks, gbit), both in found.items()]


def folded_rows(context):
    """Two machines that stand for all, against all of them."""
    rows = []
    for name, (machines, size) in COMPLETE.items():
        options = ("--machines", str(machines), "--each", str(EACH), "--gbit", "100", "--bytes", str(size))
        few, = times(context, [name], *options)
        every, = times(context, [name], *options, "--complete")
        rows.append(Row(f"{name}, {every['ranks']} ranks, 100 Gbit/s, {size_name(size)}: two machines / all", "ms",
                        [1e3 * few["seconds"]], [1e3 * every["seconds"]], None, less_is_better=True, faster=False,
                        extra={"ranks": every["ranks"], "peer_simulated_in": every["simulated_in"]}))
    return rows


def measured(context, hosts, options):
    """{bytes: milliseconds} of all_reduce on two ranks of each host."""
    secret = two_hosts.write_secret(context.folder)
    coupler = context.program("coupler")
    outputs = [None, None]

    def start(host):
        words = [coupler, "launch", "-n", "4", *two_hosts.launch_flags(host)]
        for option in (*options, f"backend.interface={two_hosts.INTERFACE}", f"launch.secret_file={secret}"):
            words += ["-o", option]
        words += [coupler, "bench", "collectives", "--bytes", listed(WIRE_BYTES), "--json"]
        try:
            outputs[host] = children.run(two_hosts.on(hosts[host], *words, own_processes=True), context.folder, 120)
        except children.Failed as error:
            outputs[host] = error

    threads = [threading.Thread(target=start, args=(host,)) for host in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for output in outputs:
        if isinstance(output, children.Failed):
            raise output
    text = outputs[0]
    return {row["bytes"]: row["median_us"] / 1e3 for row in json.loads(text[text.index("[\n"):text.rindex("]") + 1])}


def measured_rows(context):
    """The simulation against what two machines of two ranks take, as namespaces of this machine."""
    reason = two_hosts.why_not()
    if not reason and not os.access(os.path.join(context.build, "bin", "coupler"), os.X_OK):
        reason = "the program coupler is missing"
    if reason:
        context.say(f"simulated: not compared with a measurement: {reason}")
        return []
    rows = []
    try:
        with two_hosts.two_hosts(two_hosts.LIMITED) as (hosts, _):
            for name, (schedule, options) in WIRE.items():
                took = measured(context, hosts, options)
                for one in times(context, [schedule], "--machines", "2", "--each", "2", "--gbit", "1", "--bytes",
                                 listed(took), "--complete"):
                    rows.append(Row(f"{name}, 2 machines of 2 ranks, 1 Gbit/s, {size_name(one['bytes'])}: measured / "
                                    "simulated", "ms", [took[one["bytes"]]], [1e3 * one["seconds"]], None,
                                    less_is_better=True, faster=False))
    except children.Failed as error:  # the simulations before are results without it, too
        context.say(f"simulated: the comparison with a measurement ended early: {error}")
    return rows


def simulated(context):
    """all_reduce and sharded steps on up to 4,096 simulated ranks; needs libsimgrid-dev."""
    rows = all_reduce_rows(context) + step_rows(context)
    if not context.quick:
        rows += lanes_rows(context) + folded_rows(context)
    return rows + measured_rows(context)
