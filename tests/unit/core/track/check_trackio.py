"""Trackio shows the runs of the tracker `trackio`, and writes to the same project: check_trackio.py TRACKING_SAMPLE"""
import math
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import threading

from reading import SKIPPED, need, write_run

need("trackio")

OLDEST = (0, 43)  # the first release that was tried
PYTHON_STEPS = 300

folder = tempfile.TemporaryDirectory()
os.environ.update({"TRACKIO_DIR": os.path.join(folder.name, "trackio"), "HF_HUB_OFFLINE": "1",
                   "HF_HOME": os.path.join(folder.name, "hf")})
for variable in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL", "TRACKIO_STORAGE_MODE"):
    os.environ.pop(variable, None)

import trackio  # noqa: E402
from trackio import fragments  # noqa: E402
from trackio.sqlite_storage import SQLiteStorage  # noqa: E402
from trackio.utils import MEDIA_DIR, TRACKIO_DIR  # noqa: E402

if tuple(int(part) for part in trackio.__version__.split(".")[:2]) < OLDEST:
    print(f"skipped: trackio {trackio.__version__} is older than {OLDEST}")
    sys.exit(SKIPPED)


def command(*words):
    done = subprocess.run([sys.executable, "-m", "trackio.cli", *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check_run(project, run, with_artifact):
    assert run.name == "first", run
    config = {key: value for key, value in run.config.items() if key != "_Created"}
    assert config == {"lr": 0.001, "layers": 3, "bf16": True, "optimizer": "AdamW", "_Username": None, "_Group": None}
    rows = SQLiteStorage.get_logs(project, run.name, run_id=run.id)
    losses = [(row["step"], row["train/loss"]) for row in rows if "train/loss" in row]
    assert losses == [(step, 1 / (1 + step)) for step in range(1500)], len(losses)
    assert sum("epoch" in row for row in rows) == 15
    seven = {}
    for row in rows:
        if row["step"] == 7:
            seven.update(row)
    assert seven["note"] == 'seven, "é" \ufffd' and seven["odd: name"] is True, seven
    assert math.isnan(seven["nan"]) and seven["inf"] == math.inf, seven
    picture, words = seven["picture"], seven["words"]
    assert picture["_type"] == "trackio.image" and picture["caption"] == "six grays", picture
    with open(MEDIA_DIR / picture["file_path"], "rb") as image:
        assert image.read(4) == b"\x89PNG"
    shown = trackio.Table.to_display_format(words["_value"])
    assert shown == [{"text": "a", "loss": 0.5}, {"text": "b", "loss": 1.5}], shown
    if with_artifact:
        (kept,) = SQLiteStorage.get_run_artifacts(project, run.name, run.id)["output"]
        assert kept["name"] == "program", kept


# Two processes of Coupler and one of Trackio write to one project at once.
def write_with_trackio():
    code = ("import trackio, time\n"
            "run = trackio.init(project='sample', name='python', auto_log_cpu=False, auto_log_gpu=False)\n"
            f"for step in range({PYTHON_STEPS}):\n    trackio.log({{'x': step}})\n    time.sleep(0.005)\n"
            "trackio.finish()\n")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, stdout=subprocess.DEVNULL)


failed = []


def attempt(call, *arguments):
    try:
        call(*arguments)
    except Exception as error:
        failed.append(error)


writers = [threading.Thread(target=attempt, args=(write_run, sys.argv[1], folder.name, "trackio")) for _ in range(2)]
writers.append(threading.Thread(target=attempt, args=(write_with_trackio,)))
for writer in writers:
    writer.start()
for writer in writers:
    writer.join()
assert not failed, failed

runs = {}
for run in trackio.Api().runs("sample"):
    runs.setdefault(run.name, []).append(run)
assert sorted(runs) == ["first", "python"] and len(runs["first"]) == 2, runs
for run in runs["first"]:
    check_run("sample", run, with_artifact=True)
assert len(SQLiteStorage.get_logs("sample", "python", run_id=runs["python"][0].id)) == PYTHON_STEPS
assert "sample" in command("list", "projects") and "first" in command("list", "runs", "--project", "sample")
assert "train/loss" in command("list", "metrics", "--project", "sample", "--run", "first")

# The second upload of the same contents is no new version, and downloading compares the digests.
reader = trackio.init(project="sample", name="reader", auto_log_cpu=False, auto_log_gpu=False)
program = reader.use_artifact("program:latest")
assert program.version == "v0", program.version
with open(os.path.join(program.download(os.path.join(folder.name, "got")), "tracking_sample"), "rb") as got, \
        open(sys.argv[1], "rb") as sent:
    assert got.read() == sent.read()
with open(os.path.join(folder.name, "tracking_sample"), "wb") as again, open(sys.argv[1], "rb") as sent:
    again.write(sent.read())
again = reader.log_artifact(os.path.join(folder.name, "tracking_sample"), name="program")
assert again.version == "v0", "Trackio computes another digest of the manifest"
trackio.finish()


# The tables are those of Trackio, also in a project that Coupler has created; and it goes on with Trackio's runs.
def schema(project):
    with sqlite3.connect(SQLiteStorage.get_project_db_path(project)) as database:
        found = database.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall()
        version = database.execute("PRAGMA user_version").fetchone()
    return version, {(kind, name): re.sub(r"\s|IF NOT EXISTS", "", sql or "") for kind, name, _, sql in found}


write_run(sys.argv[1], folder.name, "trackio", TRACKING_SAMPLE_PROJECT="own")
SQLiteStorage.init_db("theirs")
assert schema("own") == schema("theirs"), (schema("own"), schema("theirs"))
before = schema("own")
SQLiteStorage.init_db("own")
assert schema("own") == before

# On a network file system: the inbox, which Trackio imports.
write_run(sys.argv[1], folder.name, "trackio", TRACKING_SAMPLE_PROJECT="inbox", TRACKIO_STORAGE_MODE="jsonl")
assert not SQLiteStorage.get_project_db_path("inbox").exists()
assert fragments.import_inbox_dir() > 1500
(run,) = trackio.Api().runs("inbox")
check_run("inbox", run, with_artifact=False)
assert not list((TRACKIO_DIR / "inbox").iterdir())
print("Trackio shows all of it")
