"""What compressed gradients and LocalSGD gain per step, over loopback and a slow network, and how
they affect the loss when training on text."""
import contextlib
import os
import re
import shutil
import statistics
import subprocess
import time

from . import children
from .report import Bar, Row
from .turns import Group

WARM_UP = 24  # steps: bucket tuning takes 20
AVERAGES_AFTER = 8  # steps of LocalSGD: averages once per turn


def powersgd(rank, start_step):
    return ("communication.gradients=powersgd", f"communication.powersgd_rank={rank}",
            f"communication.powersgd_start_step={start_step}")


def torch_powersgd(rank, start_step):
    return ("--hook", "powersgd", "--powersgd-rank", str(rank), "--powersgd-start-step",
            str(start_step))


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
# Steps of the training whose loss is compared. PowerSGD starts after a tenth of them, as torch's
# documentation of its hook recommends. The last UNSEEN bytes of the text are held out.
TRAINED = 600
START = TRAINED // 10
# Our options, and text_loss.py's arguments for torch's corresponding hook.
TRAINED_WITH = {
    "none": ((), ()),
    "bf16": (SENT["bf16"], ("--hook", "bf16")),
    **{f"powersgd {rank}": (powersgd(rank, START), torch_powersgd(rank, START)) for rank in (4, 32)},
}
UNSEEN = 1 << 16
# A network namespace in which loopback carries this rate in both directions together, like a link
# with half of it in each direction.
SLOW = ("ip link set lo up && tc qdisc add dev lo root tbf rate {rate} burst 512kb latency 200ms && "
        'exec "$@"')
NETWORKS = {"loopback": None, "1 Gbit/s": "2gbit"}
STEPS = {"loopback": 5, "1 Gbit/s": 3}  # per turn
ROUNDS = 5
# After this time no further rounds start, but at least three always run.
LONGEST = 60  # s


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
            2, backend, *context.bench("steps"), "--model", "gpt", "--control", path,
            options=SENT[kind])
        rate = NETWORKS[network]
        return [command if rate is None else within(rate, command)]

    name = f"{kind}-{network}".replace(" ", "-").replace("/", "-")
    return stack.enter_context(
        contextlib.closing(Group(name, context.folder, 2, commands)))


def in_turns(context, groups, network):
    """{kind: [(milliseconds, CPU milliseconds) per step, for each round]}."""
    figures = {kind: [] for kind in groups}
    kinds, rounds = list(groups), context.rounds_or(ROUNDS)
    end = time.monotonic() + LONGEST
    for number in range(rounds):
        if number >= 3 and not context.rounds and time.monotonic() > end:
            context.say(f"less-communication: {network}: {number} rounds instead of {rounds}")
            break
        context.say(f"less-communication: {network}: round {number + 1} of {rounds}")
        turn = number % len(kinds)
        order = kinds[turn:] + kinds[:turn]
        for kind in order if number % 2 == 0 else order[::-1]:
            steps = AVERAGES_AFTER if kind == "local-sgd" else STEPS[network]
            seconds, used, _ = groups[kind].turn("ours", steps)
            figures[kind].append((1e3 * seconds / steps, 1e3 * used / steps))
    return figures


def loss_rows(context):
    """examples/gpt on the King James text, uncompressed and with each kind that has a bar, and the
    same with torch's own hooks. Compares the loss on held-out text, because the loss of one batch is
    mostly noise."""
    if shutil.which("bible") is None:
        context.say("less-communication: skipping the losses; run apt-get install bible-kjv")
        return []
    text = os.path.join(context.folder, "kjv.txt")
    children.run([os.path.join(context.source, "examples/gpt/get-text"), text], context.folder, 60)
    with open(text, "rb") as file:
        words = file.read()
    for name, part in ("trained", words[:-UNSEEN]), ("unseen", words[-UNSEEN:]):
        with open(os.path.join(context.folder, name), "wb") as file:
            file.write(part)
    losses, torch_losses = {}, {}
    for kind, (options, hook) in TRAINED_WITH.items():
        context.say(f"less-communication: {TRAINED} steps on text: {kind}")
        output = children.run(
            context.launch(2, "gloo_cpu", context.program("gpt"), "--text", "trained", "--evaluate",
                           "unseen", "--steps", str(TRAINED), "--batch-size", "4", "--seq", "128",
                           "--layers", "6", "--width", "384", "--heads", "6", options=options),
            context.folder, 3600)
        losses[kind] = float(re.search(r"float32 +loss ([0-9.]+)", output)[1])
        context.say(f"less-communication: {TRAINED} steps on text: {kind} in PyTorch")
        output = children.run(
            [context.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
             context.script("text_loss.py"), "--trained", "trained", "--unseen", "unseen",
             "--steps", str(TRAINED), *hook], context.folder, 3600)
        torch_losses[kind] = float(re.search(r"^loss ([0-9.]+)", output, re.MULTILINE)[1])

    def row(kind, peer, peer_loss, bar):
        return Row(f"gpt 2 ranks: loss after {TRAINED} steps, {kind} / {peer}", "nats a byte",
                   [losses[kind]], [peer_loss], bar, less_is_better=True, faster=False,
                   limit=[torch_losses[kind]] if bar else None, limit_name="PyTorch's own hook")

    return [row(kind, "none", losses["none"], Bar("<=", 1.02)) for kind in BARS] + [
        row(kind, f"{kind} in PyTorch", torch_losses[kind], None) for kind in TRAINED_WITH]


def measure(context, network):
    rows = []
    with contextlib.ExitStack() as stack:
        groups = {}
        for kind in SENT:
            context.say(f"less-communication: {network}: warming up {kind}")
            groups[kind] = open_group(context, stack, kind, network)
            groups[kind].turn("ours", WARM_UP)
        figures = in_turns(context, groups, network)

        def column(kind, place):
            return [figure[place] for figure in figures[kind]]

        for kind in SENT:
            if kind == "none":
                continue
            bar = BARS.get(kind) and Bar(">=", BARS[kind])
            rows.append(Row(f"gpt 2 ranks {network}: {kind} / none", "ms", column(kind, 0),
                            column("none", 0), bar, less_is_better=True,
                            extra={"ours_cpu_ms": statistics.median(column(kind, 1)),
                                   "peer_cpu_ms": statistics.median(column("none", 1))},
                            limit=column("nothing sent", 0) if bar else None,
                            limit_name="nothing sent"))
    return rows


def less_communication(context):
    """GPT of 10.5 million parameters on 2 ranks of gloo_cpu: steps with reduced communication."""
    if not context.quick:
        context.need_python("torch")
    rows = []
    for network, rate in NETWORKS.items():
        if rate is not None and not can_slow_down():
            context.say(f"skipping {network}: it needs root, unshare, ip and tc with tbf")
            continue
        rows += measure(context, network)
    return rows if context.quick else rows + loss_rows(context)
