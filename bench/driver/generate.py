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
