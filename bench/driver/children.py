"""Child processes: a clean environment, a deadline, and no leftovers."""
import os
import signal
import subprocess

# Our environment must not change the children's rank or settings.
FOREIGN = ("COUPLER_", "OMPI_", "PMIX_", "PRTE_", "SLURM_", "TORCHELASTIC_", "ACCELERATE_",
           "GLOO_", "NCCL_", "TORCH_", "MASTER_", "OMP_", "MKL_", "KMP_", "GROUP_", "ROLE_")
FOREIGN_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "LD_PRELOAD")


class Failed(Exception):
    """A benchmark that could not run; the message says why."""


def environment(**more):
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(FOREIGN) and name not in FOREIGN_NAMES}
    return kept | {"OMP_NUM_THREADS": "1"} | more


def end(process, grace=10):
    """Waits for the process, then kills the rest of its process group."""
    try:
        process.wait(grace)
    except subprocess.TimeoutExpired:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def start(command, folder, env, log):
    return subprocess.Popen(command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=log,
                            stderr=subprocess.STDOUT, start_new_session=True)


def run(command, folder, limit, env=None):
    """Runs a command and returns its output. Raises Failed if it fails or exceeds limit."""
    process = subprocess.Popen(command, cwd=folder, env=env or environment(), text=True,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, start_new_session=True)
    try:
        output, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        raise Failed(f"took longer than {limit} s: {' '.join(command)}")
    finally:
        end(process, grace=0)
    if process.returncode != 0:
        raise Failed(f"exit code {process.returncode}: {' '.join(command)}\n{output[-3000:]}")
    return output
