"""What compressed gradients and LocalSGD gain per step, on one machine and over a slow network."""
import contextlib
import statistics
import time

from . import two_hosts
from .report import Bar, Row
from .turns import Group

WARM_UP = 24  # steps: bucket tuning takes 20
AVERAGES_AFTER = 8  # steps of LocalSGD: averages once per turn


def powersgd(rank, start_step):
    return ("communication.gradients=powersgd", f"communication.powersgd_rank={rank}",
            f"communication.powersgd_start_step={start_step}")


SENT = {
    "none": (),
    "bf16": ("communication.gradients=bf16",),
    "fp16": ("communication.gradients=fp16",),
    "int8": ("communication.gradients=int8",),
    "powersgd 4": powersgd(4, 10),
    "powersgd 32": powersgd(32, 10),
    "local-sgd": (f"communication.local_sgd_steps={AVERAGES_AFTER}",),
    # The upper bound for any compression.
    "nothing sent": ("communication.local_sgd_steps=1000000000",),
}
BARS = {"bf16": 1.2, "powersgd 4": 1.2, "powersgd 32": 1.2}
ONE_MACHINE, TWO_MACHINES = "one machine", "1 Gbit/s"
STEPS = {ONE_MACHINE: 5, TWO_MACHINES: 3}  # per turn
ROUNDS = 5
# After this time no further rounds start, but at least three always run.
LONGEST = 60  # s


def open_group(context, stack, kind, place, hosts, port):
    """Two ranks that train so: on this machine, or one on each host."""
    def commands(path):
        training = (*context.bench("steps"), "--model", "gpt", "--control", path)
        if not hosts:
            return [context.launch(2, "gloo_cpu", *training, options=SENT[kind])]
        options = (*SENT[kind], f"backend.interface={two_hosts.INTERFACE}",
                   f"launch.secret_file={two_hosts.write_secret(context.folder)}")
        return [two_hosts.on(host, *context.launch(
                    2, "gloo_cpu", *training, options=options, flags=two_hosts.launch_flags(rank, port)))
                for rank, host in enumerate(hosts)]

    name = f"{kind}-{place}".replace(" ", "-").replace("/", "-")
    return stack.enter_context(
        contextlib.closing(Group(name, context.folder, 2, commands)))


def in_turns(context, groups, place):
    """{kind: [(milliseconds, CPU milliseconds) per step, for each round]}."""
    figures = {kind: [] for kind in groups}
    kinds, rounds = list(groups), context.rounds_or(ROUNDS)
    end = time.monotonic() + LONGEST
    for number in range(rounds):
        if number >= 3 and not context.rounds and time.monotonic() > end:
            context.say(f"less-communication: {place}: {number} rounds instead of {rounds}")
            break
        context.say(f"less-communication: {place}: round {number + 1} of {rounds}")
        turn = number % len(kinds)
        order = kinds[turn:] + kinds[:turn]
        for kind in order if number % 2 == 0 else order[::-1]:
            steps = AVERAGES_AFTER if kind == "local-sgd" else STEPS[place]
            seconds, used, _ = groups[kind].turn("ours", steps)
            figures[kind].append((1e3 * seconds / steps, 1e3 * used / steps))
    return figures


def measure(context, place, hosts=()):
    rows = []
    with contextlib.ExitStack() as stack:
        groups = {}
        for number, kind in enumerate(SENT):
            context.say(f"less-communication: {place}: warming up {kind}")
            groups[kind] = open_group(context, stack, kind, place, hosts, 29500 + number)
            groups[kind].turn("ours", WARM_UP)
        figures = in_turns(context, groups, place)
        if hosts:
            fastest = min(milliseconds for milliseconds, _ in figures["none"])
            two_hosts.check_wire("an uncompressed step", fastest / 1e3, 4 * groups["none"].parameters)

        def column(kind, which):
            return [figure[which] for figure in figures[kind]]

        for kind in SENT:
            if kind == "none":
                continue
            bar = BARS.get(kind) and Bar(">=", BARS[kind])
            rows.append(Row(f"gpt 2 ranks, {place}: {kind} / none", "ms", column(kind, 0),
                            column("none", 0), bar, less_is_better=True,
                            extra={"ours_cpu_ms": statistics.median(column(kind, 1)),
                                   "peer_cpu_ms": statistics.median(column("none", 1))},
                            limit=column("nothing sent", 0) if bar else None,
                            limit_name="nothing sent"))
    return rows


def less_communication(context):
    """GPT of 10.5 million parameters on 2 ranks of gloo_cpu: steps with reduced communication."""
    rows = measure(context, ONE_MACHINE)
    if reason := two_hosts.why_not():
        context.say(f"less-communication: no steps over {TWO_MACHINES}: {reason}")
        return rows
    with two_hosts.two_hosts(two_hosts.LIMITED) as (hosts, _):
        return rows + measure(context, TWO_MACHINES, hosts)
