"""What tracking costs per training step."""
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from . import children
from .report import Bar, Row

STEPS = 1500  # per turn: a few seconds


class Mlflow(BaseHTTPRequestHandler):
    """A minimal MLflow server, in this process because a real one runs on another machine."""
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.answer(b'{"experiment": {"experiment_id": "1"}}')

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(b'{"run": {"info": {"run_id": "1"}}}')

    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def measure(context, threads):
    """Six values per round, as bench tracking prints them."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Mlflow)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        output = children.run(
            ["env", f"OMP_NUM_THREADS={threads}",
             f"MLFLOW_TRACKING_URI=http://127.0.0.1:{server.server_address[1]}",
             *context.bench("tracking"), "--rounds", str(context.rounds_or(11)),
             "--steps", str(100 if context.quick else STEPS), "--folder", context.folder],
            context.folder, 900)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    return list(zip(*([float(word) for word in line.split()] for line in output.splitlines())))


def tracking(context):
    """MLP steps with 10 values per step to csv, jsonl, tensorboard and mlflow, against none."""
    rows = []
    for threads in sorted({1, os.cpu_count()}):
        without, tracked, cpu_without, cpu_with, log, beside = measure(context, threads)
        name = f"MLP step, {threads} thread{'s' if threads > 1 else ''}: with tracking / without"
        rows.append(Row(name, "us", tracked, without, Bar("<=", 1.01), less_is_better=True,
                        faster=False, limit=beside,
                        limit_name="without, next to a thread that takes the trackers' CPU time"))
        rows.append(Row(name + ", CPU time of all threads", "us", cpu_with, cpu_without,
                        less_is_better=True, faster=False))
        rows.append(Row(name.split(":")[0] + ": in accelerator.log / whole step", "us", log,
                        without, Bar("<=", 0.01), less_is_better=True, faster=False))
    return rows
