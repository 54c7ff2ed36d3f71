"""How compressed gradients affect the loss of a GPT that is trained on text, as PyTorch's own hooks do."""
import os
import re
import shutil

from . import children
from .less_communication import BARS, SENT, powersgd
from .report import Bar, Row

STEPS = 600
UNSEEN = 1 << 16  # bytes at the end of the text that are held out


def kinds(steps):
    """{kind: our options, and text_loss.py's arguments for torch's corresponding hook}. PowerSGD starts
    after a tenth of the steps, as torch's documentation of its hook recommends."""
    start = steps // 10
    return {
        "none": ((), ()),
        "bf16": (SENT["bf16"], ("--hook", "bf16")),
        **{f"powersgd {rank}": (powersgd(rank, start), (
            "--hook", "powersgd", "--powersgd-rank", str(rank), "--powersgd-start-step", str(start)))
           for rank in (4, 32)},
    }


def write_texts(context):
    """The King James text: what is trained on, and what is held out."""
    if shutil.which("bible") is None:
        raise children.Failed("the text is missing: run apt-get install bible-kjv")
    text = os.path.join(context.folder, "kjv.txt")
    children.run([os.path.join(context.source, "examples/gpt/get-text"), text], context.folder, 60)
    with open(text, "rb") as file:
        words = file.read()
    for name, part in ("trained", words[:-UNSEEN]), ("unseen", words[-UNSEEN:]):
        with open(os.path.join(context.folder, name), "wb") as file:
            file.write(part)


def ours(context, steps, options):
    output = children.run(
        context.launch(2, "gloo_cpu", context.program("gpt"), "--text", "trained", "--evaluate",
                       "unseen", "--steps", str(steps), "--batch-size", "4", "--seq", "128",
                       "--layers", "6", "--width", "384", "--heads", "6", options=options),
        context.folder, 3600)
    return float(re.search(r"float32 +loss ([0-9.]+)", output)[1])


def torchs(context, steps, hook):
    output = children.run(
        [context.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         context.script("text_loss.py"), "--trained", "trained", "--unseen", "unseen",
         "--steps", str(steps), *hook], context.folder, 3600)
    return float(re.search(r"^loss ([0-9.]+)", output, re.MULTILINE)[1])


def loss(context):
    """The loss of that GPT on held-out text after 600 steps, with compressed gradients."""
    # The loss of one batch is mostly noise.
    context.need_python("torch")
    write_texts(context)
    steps = 20 if context.quick else STEPS
    losses, torch_losses = {}, {}
    for kind, (options, hook) in kinds(steps).items():
        context.say(f"less-communication-loss: {steps} steps: {kind}")
        losses[kind] = ours(context, steps, options)
        context.say(f"less-communication-loss: {steps} steps: {kind} in PyTorch")
        torch_losses[kind] = torchs(context, steps, hook)

    def row(kind, peer, peer_loss, bar):
        return Row(f"gpt 2 ranks: loss after {steps} steps, {kind} / {peer}", "nats a byte",
                   [losses[kind]], [peer_loss], bar, less_is_better=True, faster=False,
                   limit=[torch_losses[kind]] if bar else None, limit_name="PyTorch's own hook")

    return [row(kind, "none", losses["none"], Bar("<=", 1.02)) for kind in BARS] + [
        row(kind, f"{kind} in PyTorch", torch_losses[kind], None) for kind in losses]
