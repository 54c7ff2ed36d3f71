"""Models beyond memory, 1.04 billion parameters from shards: against Accelerate and the disk."""
import contextlib
import glob
import os

from . import children
from .report import Bar, Row
from .turns import Group

MIB = 1 << 20
UNIT = 64  # MiB: a layer of the model


def make_checkpoint(context):
    folder = os.path.join(context.folder, "checkpoint")
    children.run([context.python, context.script("big_model.py"), "--make", folder],
                 context.folder, 600)
    return folder


def big_model(context):
    """Loading and running 4.2 GB of weights on the CPU, one thread, against accelerate."""
    context.need_python("torch", "accelerate")
    checkpoint = make_checkpoint(context)
    sizes = [os.path.getsize(path) for path in glob.glob(os.path.join(checkpoint, "*.safetensors"))]
    rounds = context.rounds_or(7)
    names = ("load", "read", "memory", "disk", "first", "cold", "raw", "empty",
             "empty-memory")
    ours, peer = ({name: [] for name in names} for _ in range(2))
    grown = {name: [] for name in ("load", "disk", "empty-memory")}
    with contextlib.ExitStack() as stack:
        def group(name, *command):
            return stack.enter_context(contextlib.closing(Group(
                name, context.folder, 1,
                lambda path: [[*command, "--checkpoint", checkpoint, "--control", path]])))
        mine = group("big-model", *context.bench("big_model"))
        theirs = group("big-model-accelerate", context.python, context.script("big_model.py"))
        mine.turn("prepare-memory", 1)
        for side in (mine, theirs):
            side.turn("prepare-disk", 1)
        outputs = [mine.turn("memory", 1)[2], mine.turn("output", 1)[2], theirs.turn("output", 1)[2]]
        if max(outputs) - min(outputs) > 1e-3 * max(abs(value) for value in outputs):
            raise children.Failed(f"big-model: the outputs differ: {outputs}")
        for round_number in range(rounds):
            pairs = [(mine, ours, name)
                     for name in ("load", "read", "memory", "disk", "empty", "empty-memory")]
            pairs += [(theirs, peer, name) for name in ("load", "disk", "empty")]
            for side, figures, name in pairs[::1 if round_number % 2 == 0 else -1]:
                seconds, _, answer = side.turn(name, 1)
                figures[name].append(seconds)
                if side is mine and name in grown:
                    grown[name].append(answer)
                if name.startswith("empty"):
                    side.turn("free", 1)
        for _ in range(max(1, rounds // 3)):
            ours["first"].append(mine.turn("first", 1)[0])
            peer["first"].append(theirs.turn("first", 1)[0])
            mine.turn("drop", 1)
            ours["raw"].append(mine.turn("raw", 1)[0])
            mine.turn("drop", 1)
            mine.turn("prepare-disk", 1)
            ours["cold"].append(mine.turn("cold", 1)[0])
            theirs.turn("drop", 1)
            peer["cold"].append(theirs.turn("cold", 1)[0])

    def faster(name, mine_of, their_of, bar):
        return Row(name, "s", mine_of, their_of, bar, less_is_better=True)

    def memory(name, values, limit):
        return Row(name, "MiB", values, [limit] * len(values), Bar("<=", 1.0), less_is_better=True,
                   faster=False)

    return [
        faster("load 4.2 GB and touch / accelerate", ours["load"], peer["load"], Bar(">=", 1.0)),
        faster("load 4.2 GB and touch / plain cached read", ours["load"], ours["read"],
               Bar(">=", 0.85)),
        memory("anonymous memory of the load / biggest shard + 64 MiB", grown["load"],
               max(sizes) / MIB + 64),
        faster("no model to first output, weights on disk / accelerate", ours["first"],
               peer["first"], Bar(">=", 10)),
        faster("forward from disk, warm / accelerate", ours["disk"], peer["disk"], Bar(">=", 6)),
        faster("forward from disk, warm / from memory", ours["disk"], ours["memory"],
               Bar(">=", 0.9)),
        faster("forward from disk, cold / the disk alone", ours["cold"], ours["raw"],
               Bar(">=", 0.9)),
        faster("forward from disk, cold / accelerate", ours["cold"], peer["cold"], None),
        memory("anonymous memory of a forward from disk / two layers + 64 MiB", grown["disk"],
               2 * UNIT + 64),
        Row("empty weights, 100 B parameters", "s", ours["empty"], peer["empty"],
            Bar("<=", 0.010, of="ours"), less_is_better=True),
        memory("anonymous memory of that / 5 MiB", grown["empty-memory"], 5),
    ]
