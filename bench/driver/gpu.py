"""On a GPU: training against Accelerate, submit cost, weights from page-locked memory."""
import contextlib
import json
import os
import statistics

from . import children
from .report import Bar, Row
from .turns import Group

STEPS, WARM_UP, PROFILED = 20, 10, 5
PROFILES = 3  # of each side, in turns: the host's share of a profiled step varies
TOKENS = 8 * 1024  # per step
BUSY = ("kernel", "gpu_memcpy", "gpu_memset")  # a trace's categories of device work


def busy_and_all(path):
    """Seconds in which the device works, and from its first to its last work in a Chrome trace."""
    with open(path, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    spans = sorted((event["ts"], event["ts"] + event["dur"]) for event in events
                   if event.get("cat") in BUSY)
    if not spans:
        raise children.Failed(f"{path} has no device events")
    busy, end = 0.0, spans[0][0]
    for begin, until in spans:
        busy += max(0.0, until - max(begin, end))
        end = max(end, until)
    return 1e-6 * busy, 1e-6 * (end - spans[0][0])


def gpt(context):
    """GPT-2's smallest shape in bf16 on one GPU, 8 sequences of 1024 tokens, against Accelerate."""
    context.need_python("torch", "accelerate")
    ours_words = [*context.bench("steps"), "--model", "gpt2-small",
                  "-o", "training.mixed_precision=bf16", "-o", "training.device=cuda"]
    python_words = [context.python, context.script("accelerate_in_turns.py"), "--model",
                    "gpt2-small", "--precision", "bf16"]
    speed = {"ours": [], "eager": [], "compiled": []}
    with contextlib.ExitStack() as stack:
        def group(name, words):
            return stack.enter_context(contextlib.closing(
                Group(name, context.folder, 1, lambda path: [words + ["--control", path]])))
        ours, python = group("ours-gpu", ours_words), group("python-gpu", python_words)
        sides = {"ours": ours, "eager": python, "compiled": python}
        first = {name: side.turn(name, 1, None)[2] for name, side in sides.items()}
        for name, loss in first.items():
            if abs(loss - first["eager"]) > 2e-2 * abs(first["eager"]):
                raise children.Failed(f"the losses differ: {first}")
            sides[name].turn(name, WARM_UP, None)
        for round_number in range(context.rounds_or(7)):
            order = list(sides)
            for name in order if round_number % 2 == 0 else order[::-1]:
                seconds = sides[name].turn(name, STEPS, None)[0]
                speed[name].append(TOKENS * STEPS / seconds)
        idle, working = {"ours": [], "eager": []}, []
        for _ in range(PROFILES):
            for name, side in (("ours", ours), ("eager", python)):
                path = os.path.join(context.folder, name + ".trace.json")
                side.turn("profile:" + path, PROFILED, None)
                busy, whole = busy_and_all(path)
                idle[name].append(1 - busy / whole)
                if name == "ours":
                    working.append(TOKENS * PROFILED / busy)
    limit = {"limit": [statistics.median(working)] * len(speed["ours"]),
             "limit_name": "the time of our kernels and copies alone, from the profiles"}
    return [Row("GPT 124M bf16 / accelerate, eager", "tokens/s", speed["ours"], speed["eager"],
                Bar(">=", 1.05), **limit),
            Row("GPT 124M bf16 / accelerate, compiled", "tokens/s", speed["ours"],
                speed["compiled"], **limit),
            Row("share of time the GPU is idle / accelerate, eager", "", idle["ours"],
                idle["eager"], Bar("<=", 1), less_is_better=True, faster=False)]


def columns(context, what, rounds):
    """The numbers that the program prints per round, as a list for each column."""
    output = children.run([*context.bench("gpu"), what, str(context.rounds_or(rounds))],
                          context.folder, 600)
    return list(zip(*([float(word) for word in line.split()] for line in output.splitlines())))


def submit(context):
    """Host time of submitting an all_reduce of 1 KiB, against ncclAllReduce."""
    ours, raw, ordered = columns(context, "submit", 15)
    return [Row("submit of an all_reduce, ours / ncclAllReduce", "us", ours, raw,
                Bar("<=", 1, "difference", "own cost <= 1 us"), less_is_better=True, limit=ordered,
                limit_name="ncclAllReduce on a stream of its own, and the calls that order it")]


def stream(context):
    """A forward that streams its weights from page-locked memory, against a plain copy of them."""
    ours, copy = columns(context, "stream", 7)
    return [Row("weights from page-locked memory / a plain copy", "GB/s", ours, copy,
                Bar(">=", 0.85))]
