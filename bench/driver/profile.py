"""What [profile] costs per step, while it records and while it does not."""
import contextlib
import glob
import os

from . import children
from .report import Bar, Row
from .turns import Group

STEPS = 10  # per turn; all are recorded
# A turn is a round: bench profile runs one pass before its clock starts and one after it stops.
ROUNDS = ("profile.wait=1", "profile.warmup=0", f"profile.active={STEPS + 1}", "profile.repeat=0")
SIDES = {
    "absent": (),
    "inactive": ("profile.dir=inactive", "profile.skip_first=1000000000"),
    "active": ("profile.dir=active", *ROUNDS),
}
WARM_UP = 3  # turns: bucket tuning and the profiler's first round


def profile(context):
    """GPT of 10.5M parameters, 2 ranks of gloo_cpu: active and inactive [profile], against none."""
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
            row("step with inactive [profile] / without", times["inactive"],
                times["absent"], Bar("<=", 1.01)),
            row("the pass that writes a trace / the same pass without", writing["active"],
                writing["absent"])]


def check_traces(context, rounds):
    """Raises Failed unless each active turn, and no inactive one, was recorded."""
    for name, expected in (("active", rounds), ("inactive", 0)):
        found = len(glob.glob(os.path.join(context.folder, name, "trace-rank0*.json")))
        if found != expected:
            raise children.Failed(f"profile: {found} traces in {name}, not {expected}")
