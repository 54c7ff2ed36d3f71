"""Shared by the scripts check_*.py: which Python to use, and skipping."""
import importlib.util
import os
import subprocess
import sys

SKIPPED = 77  # SKIP_RETURN_CODE in CMakeLists.txt


def need(package):
    """Continues in the Python of COUPLER_TEST_PYTHON, or in this one, if it has the package."""
    chosen = os.environ.pop("COUPLER_TEST_PYTHON", "")
    if chosen and chosen != sys.executable:
        os.execv(chosen, [chosen, *sys.argv])
    if importlib.util.find_spec(package) is None:
        print(f"skipped: {sys.executable} has no {package} (pip install {package}; "
              "COUPLER_TEST_PYTHON names another interpreter)")
        sys.exit(SKIPPED)


def write_run(program, folder, *trackers, **environment):
    subprocess.run([program, folder, *trackers], check=True, timeout=150,
                   env={**os.environ, **environment})
