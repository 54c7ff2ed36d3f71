"""temporary_folder.py COMMAND...: runs it with its own TMPDIR, removed afterwards.

It is removed however this process ends: see temporary_folder.h. For third-party programs, such as
torchrun and mpirun, that leave temporary files.
"""
import os
import shutil
import subprocess
import sys
import tempfile

# As in temporary_folder.cc.
REMOVER = 'exec 3<&0; {{ read -r line; {first}rm -rf -- "$0" || {{ sleep 1; rm -rf -- "$0"; }}; }} <&3 3<&- &'


class TemporaryFolder:
    """`first` is a shell command to run before the removal."""

    def __init__(self, name, first=""):
        self.path = tempfile.mkdtemp(prefix=name + "-")
        reading, self.lifeline = os.pipe()
        subprocess.run(["sh", "-c", REMOVER.format(first=first and first + "; "), self.path], stdin=reading,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, check=True)
        os.close(reading)

    def remove(self):
        shutil.rmtree(self.path)
        os.close(self.lifeline)


if __name__ == "__main__":
    folder = TemporaryFolder("coupler-test")
    try:
        code = subprocess.run(sys.argv[1:], env={**os.environ, "TMPDIR": folder.path}).returncode
    finally:
        folder.remove()
    sys.exit(code if code >= 0 else 128 - code)
