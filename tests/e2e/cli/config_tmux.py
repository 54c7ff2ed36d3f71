"""coupler config in a real terminal emulator: tmux presses keys, resizes the terminal, and captures the
screen. The terminal's settings are the same before and after, however it ends.

    config_tmux.py COUPLER

Exits with 77, which ctest treats as skipped, if tmux is not installed.
"""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from temporary_folder import TemporaryFolder

coupler = os.path.abspath(sys.argv[1])
PATIENCE = 60  # seconds, for a busy machine
if shutil.which("tmux") is None:
    print("skipped: tmux is not installed (Debian: tmux)")
    sys.exit(77)


signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # also ends tmux


class Screen:
    """A terminal of the given size with a shell in its own folder."""

    def __init__(self, columns, rows):
        self.name = f"coupler-{os.getpid()}"
        self.folder = TemporaryFolder(
            "coupler-tmux", first=f'TMUX_TMPDIR="$0" timeout 10 tmux -L {self.name} kill-server')
        self.path = pathlib.Path(self.folder.path) / "a folder"
        self.path.mkdir()
        self.environment = {**os.environ, "TMUX_TMPDIR": self.folder.path, "PS1": "$ ", "ENV": ""}
        for name in ("TMUX", "TMUX_PANE", *(name for name in os.environ if name.startswith("COUPLER_"))):
            self.environment.pop(name, None)
        self.tmux("new-session", "-d", "-x", str(columns), "-y", str(rows), "-c", str(self.path), "sh")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.tmux("kill-server")
        self.folder.remove()

    def tmux(self, *words):
        return subprocess.run(["tmux", "-L", self.name, "-f", "/dev/null", *words], check=True,
                              env=self.environment, stdout=subprocess.PIPE, text=True).stdout

    def see(self, words, first="0"):
        """Waits for the pattern in the lines from `first` on; lines above the screen are negative."""
        end = time.monotonic() + PATIENCE
        while True:
            text = self.tmux("capture-pane", "-p", "-J", "-S", first)
            if re.search(words, text, re.M):
                return
            if time.monotonic() > end:
                sys.exit(f"'{words}' did not appear:\n{text}")
            time.sleep(0.05)

    def press(self, *keys):
        self.tmux("send-keys", *keys)

    def run(self):
        self.tmux("send-keys", "-l", f"stty -a >before; {coupler} config; echo end:$?; stty -a >after")
        self.press("Enter")
        self.see("How many proc", first="-50")

    def ended(self, code):
        self.see(f"^end:{code}$")
        end = time.monotonic() + PATIENCE
        while not (self.path / "after").exists() or not self.settings("after"):
            if time.monotonic() > end:
                sys.exit("the shell does not continue")
            time.sleep(0.05)
        if self.settings("before") != self.settings("after"):
            sys.exit(f"before: {self.settings('before')}\nafter: {self.settings('after')}")
        if self.tmux("display-message", "-p", "#{cursor_flag}").strip() != "1":
            sys.exit("the cursor is hidden")

    def settings(self, name):
        # The size changes by itself.
        return re.sub(r"rows \d+; columns \d+;", "", (self.path / name).read_text())

    def configuration(self):
        return (self.path / "train.toml").read_text()

    def has_written_nothing(self):
        left = sorted(path.name for path in self.path.iterdir())
        if left != ["after", "before"]:
            sys.exit(f"left over: {left}")

    def child(self):
        shell = int(self.tmux("display-message", "-p", "#{pane_pid}"))
        return int(pathlib.Path(f"/proc/{shell}/task/{shell}/children").read_text().split()[0])

    def answer_the_rest(self):
        self.see("How many batches")
        self.press("Enter")
        self.see("Where do checkpoints go")
        self.press("-", "Enter")


def arrows():
    with Screen(100, 24) as screen:
        screen.run()
        screen.press("3", "Enter")
        screen.see("^> auto: ")
        screen.press("Up")  # from the first to the last
        screen.see("^  auto: ")
        screen.press("Down")
        screen.see("^> auto: ")
        screen.press("Escape")  # neither selects nor quits
        time.sleep(0.2)
        screen.press("Enter")
        screen.see("^> no: ")
        screen.press("Down", "Down", "NPage")
        screen.see("^> fp16: ")
        screen.press("Enter")
        screen.answer_the_rest()
        screen.ended(0)
        text = screen.configuration()
        for key in ('use = "auto"', 'mixed_precision = "fp16"', "processes = 3"):
            if f"\n{key}\n" not in text:
                sys.exit(f"{key} is not in\n{text}")


def interrupted():
    with Screen(100, 24) as screen:  # in a list
        screen.run()
        screen.press("Enter")
        screen.see("^> auto: ")
        screen.press("C-c")
        screen.ended(130)
        screen.has_written_nothing()
    with Screen(100, 24) as screen:  # in a line
        screen.run()
        screen.press("C-c")
        screen.ended(130)
        screen.has_written_nothing()


def terminated():
    with Screen(100, 24) as screen:
        screen.run()
        screen.press("Enter")
        screen.see("^> auto: ")
        os.kill(screen.child(), signal.SIGTERM)
        screen.ended(143)
        screen.has_written_nothing()


def too_small():
    with Screen(20, 3) as screen:
        screen.run()
        screen.press("2", "Enter")
        screen.see("number or name")
        screen.press("1", "Enter")
        screen.see(r"name \[no\]")
        screen.press("b", "f", "1", "6", "Enter")
        screen.see("batches")
        screen.press("Enter")
        screen.see("checkpoints go")
        screen.press("-", "Enter")
        screen.ended(0)
        if 'mixed_precision = "bf16"' not in screen.configuration():
            sys.exit(screen.configuration())


def resized():
    with Screen(100, 24) as screen:
        screen.run()
        screen.press("Enter")
        screen.see("^> auto: ")
        screen.tmux("resize-window", "-x", "40", "-y", "20")
        screen.press("Down", "Up")
        screen.see("^> auto: ")
        screen.press("Enter")
        screen.see("^> no: ")
        screen.tmux("resize-window", "-x", "20", "-y", "3")
        screen.see("number or name")
        screen.press("1", "Enter")
        screen.tmux("resize-window", "-x", "100", "-y", "24")
        screen.answer_the_rest()
        screen.ended(0)
        if 'mixed_precision = "no"' not in screen.configuration():
            sys.exit(screen.configuration())


for test in (arrows, interrupted, terminated, too_small, resized):
    test()
    print(f"{test.__name__}: ok")
