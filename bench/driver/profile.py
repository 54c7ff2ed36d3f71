"""What [profile] costs a step, while it records and while it does not."""
import contextlib
import glob
import os

from . import children
from .report import Bar, Row
from .turns import Group

STEPS = 10  # of a turn, all of which are recorded
# A turn is a round: bench profile makes a pass before its clock starts and one behind it.
ROUNDS = ("profile.wait=1", "profile.warmup=0", f"profile.active={STEPS + 1}", "profile.repeat=0")
SIDES = {
    "absent": (),
    "inactive": ("profile.dir=inactive", "profile.skip_first=1000000000"),
    "active": ("profile.dir=active", *ROUNDS),
}
WARM_UP = 3  # turns: the choice of buckets, and the profiler's own first round


def profile(context):
    """GPT of 10.5 million parameters on 2 ranks of gloo_cpu: 10 steps recorded, or not, against none."""
    times = {name: [] for name in SIDES}
    writing = {name: [] for name in SIDES}
    with contextlib.ExitStack() as stack:
        groups = {}
        for name, options in SIDES.items():
            groups[name] = stack.enter_context(contextlib.closing(Group(
                f"profile-{name}", context.folder, 2,
                lambda path, options=options: [context.launch(
                    2, "gloo_cpu", *context.bench("profile"), "--control", path,
                    options=options)])))
        for number in range(WARM_UP):
            context.say(f"profile: warm-up {number + 1} of {WARM_UP}")
            for group in groups.values():
                group.turn("ours", STEPS)
        names, rounds = list(SIDES), context.rounds_or(9)
        for number in range(rounds):
            context.say(f"profile: round {number + 1} of {rounds}")
            order = names[number % len(names):] + names[:number % len(names)]
            for name in order if number % 2 == 0 else order[::-1]:
                seconds, _, last = groups[name].turn("ours", STEPS)
                times[name].append(1e3 * seconds / STEPS)
                writing[name].append(1e3 * last)
    check_traces(context, WARM_UP + rounds)

    def row(title, ours, peer, bar=None):
        return Row(f"GPT, 2 ranks gloo_cpu: {title}", "ms", ours, peer, bar, less_is_better=True,
                   faster=False)

    return [row("step while recorded / without [profile]", times["active"], times["absent"],
                Bar("<=", 1.10)),
            row("step with [profile] that is not active / without", times["inactive"],
                times["absent"], Bar("<=", 1.01)),
            row("the pass that writes a trace / the same without", writing["active"],
                writing["absent"])]


def check_traces(context, rounds):
    """Failed where not each turn was recorded, or what should not have been was."""
    for name, expected in (("active", rounds), ("inactive", 0)):
        found = len(glob.glob(os.path.join(context.folder, name, "trace-rank0*.json")))
        if found != expected:
            raise children.Failed(f"profile: {found} traces in {name}, not {expected}")
