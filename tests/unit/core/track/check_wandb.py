"""`wandb sync` finds the files of the tracker `tensorboard`: check_wandb.py TRACKING_SAMPLE

Without a network the test ends there: wandb then contacts a server, which refuses here.
"""
import os
import signal
import subprocess
import sys
import tempfile
import threading

from reading import SKIPPED, need, write_run

need("wandb")

LIMIT = 100  # s

offers = subprocess.run([sys.executable, "-m", "wandb", "sync", "--help"], capture_output=True,
                        text=True, timeout=LIMIT)
if "--sync-tensorboard" not in offers.stdout:
    print(f"skipped: the wandb of {sys.executable} reads no event files (pip install 'wandb<0.22')")
    sys.exit(SKIPPED)

with tempfile.TemporaryDirectory() as folder:
    write_run(sys.argv[1], os.path.join(folder, "runs"), "tensorboard")
    wandb = subprocess.Popen(
        [sys.executable, "-m", "wandb", "sync", "--sync-tensorboard", "runs", "-p", "sample", "-e",
         "nobody"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder,
        start_new_session=True,
        env={**os.environ, "WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": "0" * 40,
             "WANDB_DIR": folder, "HOME": folder, "PYTHONUNBUFFERED": "1"})
    limit = threading.Timer(LIMIT, os.killpg, (wandb.pid, signal.SIGKILL))
    limit.start()
    said = []
    try:
        for line in wandb.stdout:
            said.append(line)
            if "tfevent files" in line:
                break
    finally:
        limit.cancel()
        try:
            os.killpg(wandb.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it has exited already
        wandb.wait()
    assert any("Found 1 tfevent files" in line for line in said), "".join(said)
print("wandb found the event file")
