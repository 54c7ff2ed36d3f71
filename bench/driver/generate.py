"""Greedy decoding by a language model, with weights in memory and on disk."""
import contextlib
import os

from . import children
from .report import Bar, Row
from .turns import Group

TOKENS = 32  # new tokens per turn


def generate(context):
    """Decoding by a LLaMA of 135M parameters, one thread, against transformers and accelerate."""
    context.need_python("torch", "accelerate", "transformers")
    checkpoint = os.path.join(context.folder, "checkpoint")
    children.run([context.python, context.script("generate.py"), "--make", checkpoint],
                 context.folder, 600)
    tokens = 8 if context.quick else TOKENS
    rounds = context.rounds_or(7)
    ours, peer = {"memory": [], "disk": []}, {"memory": [], "disk": []}
    with contextlib.ExitStack() as stack:
        def group(name, *command):
            return stack.enter_context(contextlib.closing(Group(
                name, context.folder, 1,
                lambda path: [[*command, "--checkpoint", checkpoint, "--control", path]])))
        mine = group("generate", *context.bench("generate"))
        theirs = group("generate-transformers", context.python, context.script("generate.py"))
        # Warm up, and check that all sides generate the same tokens.
        answers = [side.turn(mode, 8)[2] for side in (mine, theirs) for mode in ours]
        if max(answers) != min(answers):
            raise children.Failed(f"generate: the tokens differ: {answers}")
        for round_number in range(rounds):
            sides = [(mine, ours), (theirs, peer)][::1 if round_number % 2 == 0 else -1]
            for mode in ours:
                for side, figures in sides:
                    figures[mode].append(tokens / side.turn(mode, tokens)[0])
    return [
        Row("decode from disk, warm / accelerate and transformers", "tokens/s", ours["disk"],
            peer["disk"], Bar(">=", 3)),
        Row("decode in memory / transformers", "tokens/s", ours["memory"], peer["memory"],
            Bar(">=", 1.2)),
        Row("decode from disk, warm / in memory", "tokens/s", ours["disk"], ours["memory"]),
    ]


def quantized(context):
    """Decoding by a LLaMA of 551M parameters, one thread: weights of 8 and 4 bits against float32."""
    program = context.bench("quantized")
    tokens, rounds = (2, 2) if context.quick else (12, context.rounds_or(7))
    figures = {"float32": [], "int8": [], "int4": []}
    with contextlib.closing(Group("quantized", context.folder, 1,
                                  lambda path: [[*program, "--control", path]])) as group:
        for mode in figures:
            group.turn(mode, 2)
        for round_number in range(rounds):
            for mode in list(figures)[::1 if round_number % 2 == 0 else -1]:
                figures[mode].append(tokens / group.turn(mode, tokens)[0])
    return [
        Row("int8 decode / float32", "tokens/s", figures["int8"], figures["float32"],
            Bar(">=", 1.5)),
        Row("int4 decode / float32", "tokens/s", figures["int4"], figures["float32"],
            Bar(">=", 2.2)),
    ]


def over_ranks(context):
    """Decoding by a LLaMA of 551M parameters divided over 2 and 4 ranks, against one process."""
    checkpoint = os.path.join(context.folder, "checkpoint")
    children.run([*context.bench("make_llama"), "--folder", checkpoint], context.folder, 600)
    program = [*context.bench("generate_over_ranks"), "--checkpoint", checkpoint, "--control"]
    tokens = 4 if context.quick else 12
    speed, parts, peaks = {1: [], 2: []}, {}, {}
    with contextlib.ExitStack() as stack:
        groups = {ranks: stack.enter_context(contextlib.closing(Group(
            f"generate-over-{ranks}", context.folder, ranks,
            lambda path, ranks=ranks: [[*program, path] if ranks == 1 else context.launch(
                ranks, "shm", *program, path, options=(f"parallel.tensor={ranks}",))])))
            for ranks in (1, 2, 4)}
        # The tokens of every rank are those of one process.
        answers = {}
        for ranks, group in groups.items():
            group.turn("generate", tokens)
            answers[ranks] = list(group.figures)
        if len({answer for figures in answers.values() for answer in figures}) != 1:
            raise children.Failed(f"mesh-generate: the tokens differ: {answers}")
        whole = groups[1].turn("weights", 1)[2]
        undivided = groups[1].turn("undivided", 1)[2]
        for ranks in (2, 4):
            groups[ranks].turn("weights", 1)
            parts[ranks] = max(groups[ranks].figures)
            groups[ranks].turn("loading", 1)
            peaks[ranks] = max(groups[ranks].figures)
        for round_number in range(context.rounds_or(5)):
            for ranks in list(speed)[::1 if round_number % 2 == 0 else -1]:
                speed[ranks].append(tokens / groups[ranks].turn("generate", tokens)[0])
    context.say(f"mesh-generate: of {whole:.1f} MiB of weights, {undivided:.3f} MiB are not divided: "
                "the vectors of norms")
    rows = []
    for ranks, part in parts.items():
        share = (whole - undivided) / ranks + undivided
        rows += [Row(f"weights of a rank of {ranks} / 1/{ranks} of the divided ones, and the others",
                     "MiB", [round(part, 3)], [round(share, 3)], Bar("<=", 1.0),
                     less_is_better=True, faster=False,
                     extra={"of_whole": round(part / whole, 4), "undivided_mib": round(undivided, 3)}),
                 Row(f"peak while a rank of {ranks} loads its weights / the whole weights", "MiB",
                     [peaks[ranks]], [whole], less_is_better=True, faster=False)]
    return [*rows, Row("decode over 2 ranks / one process", "tokens/s", speed[2], speed[1])]
