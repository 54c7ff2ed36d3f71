"""What compressed gradients and LocalSGD gain a step, over loopback and over a slow network."""
import contextlib
import shutil
import subprocess

from .report import Bar, Row
from .turns import Group

WARM_UP = 40  # the choice of buckets, and PowerSGD's first steps
STEPS = 10    # of one turn
LOSS_STEPS = 200
SENT = {
    "none": (),
    "bf16": ("communication.gradients=bf16",),
    "fp16": ("communication.gradients=fp16",),
    "int8": ("communication.gradients=int8",),
    "powersgd": ("communication.gradients=powersgd", "communication.powersgd_rank=4",
                 "communication.powersgd_start_step=10"),
    "local-sgd": ("communication.local_sgd_steps=8",),
}
BARS = {"bf16": 1.2, "powersgd": 1.2}
# A network namespace in which loopback carries so much for both directions together: as a link that
# carries half of it each way.
SLOW = ("ip link set lo up && tc qdisc add dev lo root tbf rate {rate} burst 512kb latency 200ms && "
        'exec "$@"')
NETWORKS = {"loopback": None, "1 Gbit/s": "2gbit", "100 Mbit/s": "200mbit"}


def within(rate, command):
    """The command in such a namespace."""
    return ["unshare", "-n", "sh", "-c", SLOW.format(rate=rate), "sh", *command]


def can_slow_down():
    if any(shutil.which(name) is None for name in ("unshare", "ip", "tc")):
        return False
    return subprocess.run(within("2gbit", ["true"]), capture_output=True, timeout=60).returncode == 0


def open_group(context, stack, kind, network, backend="gloo_cpu"):
    def commands(path):
        command = context.launch(
            2, backend, context.program("bench/bench_steps"), "--model", "gpt", "--control", path,
            options=SENT[kind])
        rate = NETWORKS[network]
        return [command if rate is None else within(rate, command)]

    name = f"{kind}-{network.split()[0]}"
    return stack.enter_context(
        contextlib.closing(Group(name, context.folder, 2, commands)))


def speeds(context, network):
    """{kind: [milliseconds a step of each round]}, and {kind: the loss after all of them}."""
    with contextlib.ExitStack() as stack:
        groups = {kind: open_group(context, stack, kind, network) for kind in SENT}
        for group in groups.values():
            group.turn("ours", WARM_UP)
        times = {kind: [] for kind in SENT}
        losses, kinds = {}, list(SENT)
        for number in range(context.rounds_or(7)):
            order = kinds[number % len(kinds):] + kinds[:number % len(kinds)]
            for kind in order if number % 2 == 0 else order[::-1]:
                seconds, _, losses[kind] = groups[kind].turn("ours", STEPS)
                times[kind].append(1e3 * seconds / STEPS)
        taken = WARM_UP + STEPS * context.rounds_or(7)
        for kind, group in groups.items():
            if network == "loopback" and not context.quick and taken < LOSS_STEPS:
                losses[kind] = group.turn("ours", LOSS_STEPS - taken)[2]
    return times, losses


def less_communication(context):
    """GPT of 10.5 million parameters on 2 ranks of gloo_cpu: steps with what is sent made less."""
    rows = []
    for network in NETWORKS:
        if NETWORKS[network] is not None and not can_slow_down():
            context.say(f"{network} is left out: it needs root, unshare, ip and tc with tbf")
            continue
        times, losses = speeds(context, network)
        for kind in SENT:
            if kind == "none":
                continue
            extra = {"loss": losses[kind], "loss_uncompressed": losses["none"]}
            bar = BARS.get(kind) and Bar(">=", BARS[kind])
            rows.append(Row(f"gpt 2 ranks {network}: {kind} / none", "ms", times[kind],
                            times["none"], bar, less_is_better=True, extra=extra))
    for row in rows:
        if "loopback" in row.name:
            apart = abs(row.extra["loss"] / row.extra["loss_uncompressed"] - 1)
            context.say(f"{row.name}: the loss is {apart:.2%} apart")
    return rows
