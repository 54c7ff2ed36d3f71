"""The job's store: thousands of simulated ranks exchange values through it."""
from . import children
from .report import Bar, Row


def store(context):
    """1,000 and 4,000 simulated ranks meet: all values in one request, against one by one."""
    rows = []
    for ranks, limit in ((1000, 0.2), (4000, 1)):
        output = children.run([context.program("bench/bench_store"), "--ranks", str(ranks),
                               "--rounds", str(context.rounds_or(7))], context.folder, 600)
        all_to_all, verdict, one_by_one = zip(*(map(float, line.split())
                                                for line in output.splitlines()))
        bar = Bar("<=", limit, "ours", f"<= {limit:g} s")
        rows.append(Row(f"{ranks} ranks meet and learn that all agree", "s", list(verdict),
                        list(one_by_one), bar, less_is_better=True))
        rows.append(Row(f"{ranks} ranks meet, each gets 64 B of every rank", "s",
                        list(all_to_all), list(one_by_one), bar, less_is_better=True))
    return rows
