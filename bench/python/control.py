"""serve: the counterpart of bench/steps/control.h, which describes the protocol."""
import socket
import time

LONGEST_PAUSE = 15 * 60  # s, while the other sides have their turns


def serve(path, rank, parameters, train, loss, ready=lambda mode: None):
    """Answers the driver until it says "quit".

    ready(mode) synchronizes the ranks, train(mode, steps) is timed, loss(mode) is the last loss.
    """
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    control.connect(path)
    control.settimeout(LONGEST_PAUSE)
    lines = control.makefile("rw")
    print("ready", rank, parameters, file=lines, flush=True)
    for line in lines:
        if line.strip() == "quit":
            break
        _, mode, steps = line.split()
        cpu_before = time.process_time()
        ready(mode)
        start = time.perf_counter()
        train(mode, int(steps))
        seconds = time.perf_counter() - start
        print(f"done {seconds:.9f} {cpu_before:.6f} {time.process_time():.6f} {loss(mode):.9g}",
              file=lines, flush=True)
