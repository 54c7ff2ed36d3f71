"""Long-lived processes that train in turns. bench/steps/control.h describes their protocol."""
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor

from . import children

READY_LIMIT = 180  # s, for a process to start
TURN_LIMIT = 300   # s, for the steps of one turn


class Group:
    """The ranks of one job, driven together."""

    def __init__(self, name, folder, world, command_of):
        """command_of(socket path) returns the commands to start: one, or one per rank."""
        self.name, self.world = name, world
        self.log_path = os.path.join(folder, name + ".log")
        path = os.path.join(folder, name + ".socket")
        self.processes, self.ranks, self.last = [], {}, {}
        self.figures = []  # of the last turn, by rank: what each reported as its loss
        self.idle_cpu = self.idle_wall = 0.0
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener, \
                open(self.log_path, "w") as log:
            listener.bind(path)
            listener.listen(world)
            listener.settimeout(1)
            try:
                for command in command_of(path):
                    self.processes.append(
                        children.start(command, folder, children.environment(), log))
                self._accept(listener)
            except BaseException:
                self.close()
                raise

    def _accept(self, listener):
        deadline = time.monotonic() + READY_LIMIT
        while len(self.ranks) < self.world:
            if any(process.poll() is not None for process in self.processes):
                raise self._failed("exited before it was ready")
            if time.monotonic() > deadline:
                raise self._failed(f"was not ready after {READY_LIMIT} s")
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            connection.settimeout(TURN_LIMIT)
            lines = connection.makefile("rw")
            _, rank, parameters = lines.readline().split()
            self.parameters = int(parameters)
            self.ranks[int(rank)] = lines

    def _failed(self, what):
        with open(self.log_path) as log:
            return children.Failed(f"{self.name} {what}:\n{log.read()[-3000:]}")

    def turn(self, mode, steps, ranks=None):
        """Seconds of the slowest rank, and rank 0's CPU seconds and last loss."""
        ranks = sorted(self.ranks) if ranks is None else ranks
        start = time.monotonic()
        for rank in ranks:
            print("go", mode, steps, file=self.ranks[rank], flush=True)
        answers = {}
        for rank in ranks:
            try:
                line = self.ranks[rank].readline()
            except (TimeoutError, ConnectionError) as error:
                raise self._failed(f"rank {rank}: {error or 'no answer'}")
            if not line.startswith("done "):
                raise self._failed(f"rank {rank} exited during a turn")
            answers[rank] = [float(word) for word in line.split()[1:]]
            before, after = answers[rank][1:3]
            if rank in self.last:
                self.idle_cpu += before - self.last[rank][0]
                self.idle_wall += start - self.last[rank][1]
            self.last[rank] = (after, time.monotonic())
        self.figures = [answers[rank][3] for rank in ranks]
        main = answers[ranks[0]]
        return max(a[0] for a in answers.values()), main[2] - main[1], main[3]

    def idle_share(self):
        """Share of one core that ranks used between their turns; should be close to zero."""
        return self.idle_cpu / self.idle_wall if self.idle_wall > 0 else 0.0

    def close(self):
        for lines in self.ranks.values():
            try:
                print("quit", file=lines, flush=True)
                lines.close()
            except (OSError, ValueError):
                pass  # it has already exited
        for process in self.processes:
            children.end(process)


def together(groups, mode, steps):
    """A turn of several groups at the same time: seconds of the slowest."""
    with ThreadPoolExecutor(len(groups)) as pool:
        turns = list(pool.map(lambda group: group.turn(mode, steps), groups))
    return max(seconds for seconds, _, _ in turns)
