"""A real MLflow server accepts the requests of the tracker `mlflow`: check_mlflow.py TRACKING_SAMPLE"""
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

from reading import need, write_run

need("mlflow")

START_LIMIT = 150  # s


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_until_up(server, url, log):
    deadline = time.monotonic() + START_LIMIT
    while time.monotonic() < deadline and server.poll() is None:
        try:
            if urllib.request.urlopen(url + "/health", timeout=5).status == 200:
                return
        except OSError:
            time.sleep(0.2)
    with open(log) as text:
        sys.exit("the MLflow server did not start:\n" + text.read()[-3000:])


def check(url):
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=url)
    experiment = client.get_experiment_by_name("sample")
    runs = client.search_runs([experiment.experiment_id])
    assert len(runs) == 2, runs
    for run in runs:
        assert run.info.run_name == "first"
        assert run.info.status == "FINISHED" and run.info.end_time >= run.info.start_time
        assert run.data.params == {
            "lr": "0.001", "layers": "3", "bf16": "true", "optimizer": "AdamW"}, run.data.params
        assert run.data.tags["note"] == "seven, \"é\" \ufffd", run.data.tags
        names = [entry.path.split("/")[-1].split("_")[0] for folder in ("images", "tables")
                 for entry in client.list_artifacts(run.info.run_id, folder)]
        assert names == ["picture", "words"], names
        program = client.download_artifacts(run.info.run_id, "program")
        with open(program, "rb") as got, open(sys.argv[1], "rb") as sent:
            assert got.read() == sent.read()
        history = client.get_metric_history(run.info.run_id, "train/loss")
        points = sorted((point.step, point.value) for point in history)
        assert [step for step, _ in points] == list(range(1500)), len(points)
        assert all(value == 1 / (1 + step) for step, value in points)
        assert all(abs(point.timestamp / 1000 - time.time()) < 3600 for point in history)
        assert len(client.get_metric_history(run.info.run_id, "epoch")) == 15
        metrics = run.data.metrics
        assert metrics["odd_ name"] == 1 and metrics["nan"] != metrics["nan"], metrics
        assert metrics["inf"] > 1e308, metrics


with tempfile.TemporaryDirectory() as folder:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    log = os.path.join(folder, "server.log")
    with open(log, "w") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port),
             "--workers", "1", "--backend-store-uri", f"sqlite:///{folder}/mlflow.db",
             "--artifacts-destination", os.path.join(folder, "artifacts")],
            stdout=output, stderr=subprocess.STDOUT, start_new_session=True, cwd=folder,
            env={**os.environ, "MLFLOW_TRACKING_URI": "", "DO_NOT_TRACK": "1",
                 "MLFLOW_DISABLE_TELEMETRY": "true"})
    try:
        wait_until_up(server, url, log)
        for _ in range(2):  # the second run finds an existing experiment
            write_run(sys.argv[1], folder, "mlflow", MLFLOW_TRACKING_URI=url)
        check(url)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
print("the MLflow server accepted everything")
