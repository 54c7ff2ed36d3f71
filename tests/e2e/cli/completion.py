"""Completion: what `coupler complete` offers, and that bash, zsh and fish offer it after loading their
scripts. Shells that are not installed are listed and skipped.

    completion.py COUPLER_PROGRAM SOURCE_DIR
"""
import os
import pathlib
import pty
import select
import shutil
import subprocess
import sys
import tempfile
import time

program = os.path.abspath(sys.argv[1])
problems = []
left_out = []
work = tempfile.TemporaryDirectory(prefix="coupler-completion-")
folder = pathlib.Path(work.name)
environment = {"PATH": f"{os.path.dirname(program)}:{os.environ['PATH']}", "HOME": work.name, "TERM": "dumb",
               "LC_ALL": "C.UTF-8", "XDG_CONFIG_HOME": work.name}
(folder / "training.toml").write_text("")
(folder / "train ing").write_text("")
(folder / "checkpoints").mkdir()


def check(condition, text):
    if not condition:
        problems.append(text)


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=folder, env=environment,
                          stdin=subprocess.DEVNULL)
    check(done.returncode == 0, f"{command} ends with {done.returncode}: {done.stderr}")
    return done.stdout


def offered(*words):
    return [line.split("\t")[0] for line in run(program, "complete", *words).splitlines()]


def expect(words, some=(), none=(), exactly=None):
    got = offered(*words)
    check(exactly is None or got == list(exactly), f"{words}: {got}, not {exactly}")
    check(set(some) <= set(got), f"{words}: {set(some) - set(got)} is not in {got}")
    check(not set(none) & set(got), f"{words}: {set(none) & set(got)} is in {got}")


expect([""], some=["launch", "config", "completion"], none=["rank-shim", "complete", "--help"])
expect(["ch"], exactly=["check-plugin", "checkpoint"])
expect(["--"], exactly=["--version", "--help"])
expect(["help", "la"], exactly=["launch"])
expect(["checkpoint", ""], exactly=["list", "show", "verify", "convert"])
expect(["checkpoint", "convert", "--"], some=["--max-shard-size", "--key", "--help"], none=["--json"])
expect(["checkpoint", "list", "--"], some=["--json"], none=["--key"])
expect(["checkpoint", "list", ""], exactly=[":folders"])
expect(["config", ""], exactly=["default", "import", "update", "check", "keys", "recommend"])
expect(["config", "--"], some=["--explain", "--output", "--force"], none=["--limit"])
expect(["config", "recommend", "--"], some=["--limit", "--world", "--disk"], none=["--explain"])
expect(["new", ""], exactly=["plugin", "project", "notebook"])
expect(["completion", ""], exactly=["bash", "zsh", "fish", "man"])
expect(["completion", "man", ""], exactly=[":folders"])
expect(["launch", "--bi"], exactly=["--bind"])
expect(["launch", "--bind", ""], exactly=["none", "core", "numa"])
expect(["launch", "--bind=n"], exactly=["--bind=none", "--bind=numa"])
expect(["launch", "--via", ""], exactly=["local", "mpirun", "slurm", "torchrun", "k8s"])
expect(["launch", "--mixed_precision", "b"], exactly=["bf16"])
expect(["launch", "--config", ""], exactly=[":files"])
expect(["launch", "--log-dir", ""], exactly=[":folders"])
expect(["launch", "-n", ""], exactly=[])
expect(["launch", "-n", "2", ""], exactly=[":files"])
expect(["launch", "./train", "--b"], exactly=[":files"])
expect(["launch", "-n", "2", "--", "--b"], exactly=[":files"])
expect(["test", "--"], some=["--json", "--config", "--via"])
expect(["test", "--bind", "c"], exactly=["core"])
expect(["estimate", "--", "./train", ""], exactly=[":files"])
expect(["estimate", "--d"], exactly=["--disk"])
expect(["launch", "-o", "training.m"], exactly=["training.mixed_precision="])
expect(["launch", "-o", "training.mixed_precision="],
       exactly=[f"training.mixed_precision={value}" for value in ("no", "bf16", "fp16", "fp8")])
expect(["config", "--explain", "-o", "checkpoint.async="],
       exactly=["checkpoint.async=true", "checkpoint.async=false"])
expect(["launch", "-o", "checkpoint.resume="], exactly=["checkpoint.resume=auto", "checkpoint.resume=no"])
expect(["launch", "-o", "memory.limit="], exactly=[])
expect(["launch", "-o", "backend.use="], some=["backend.use=auto", "backend.use=single"])
if any(name == "backend.use=gloo_cpu" for name in offered("launch", "-o", "backend.use=")):
    expect(["launch", "-o", "backend.gloo_cpu.ch"], exactly=["backend.gloo_cpu.chunk_bytes="])
expect(["launch", "-o", "backend.nosuch."], exactly=[])
expect(["nosuch", ""], exactly=[])
expect([], some=["launch"])

# Lines, and the last words that they complete to.
LINES = {"coupler che": {"check-plugin", "checkpoint"}, "coupler config rec": {"recommend"},
         "coupler launch --bind c": {"core"}, "coupler launch -n 2 training": {"training.toml"},
         "coupler launch -o training.mixed_precision=fp": {"fp16", "fp8"},
         "coupler launch --config=training": {"training.toml"}, "coupler completion man check": {"checkpoints"},
         "coupler checkpoint show --": {"--help", "--json"}}


def in_bash(line):
    script = folder / "coupler.bash"
    script.write_text(run(program, "completion", "bash"))
    ask = ('source coupler.bash; complete -p coupler >&2; COMP_LINE=$1 COMP_POINT=${#1} COMP_TYPE=9 COMP_KEY=9; '
           '_coupler coupler "" ""; printf "%s\\n" "${COMPREPLY[@]}"')
    return set(run("bash", "--norc", "-c", ask, "bash", line).split("\n")) - {""}


def tail(word):
    return word.rsplit("=", 1)[-1].rstrip("/")


def in_fish(line):
    script = folder / "coupler.fish"
    script.write_text(run(program, "completion", "fish"))
    ask = f"source {script}; complete -C '{line}'"
    return {tail(word.split("\t")[0]) for word in run("fish", "--no-config", "-c", ask).splitlines()}


def in_zsh(line):
    """In a terminal: the list after two tabs, or the word completed by one."""
    (folder / "zsh").mkdir(exist_ok=True)
    (folder / "zsh/_coupler").write_text(run(program, "completion", "zsh"))
    (folder / ".zshrc").write_text(
        f"fpath=({folder}/zsh $fpath); autoload -Uz compinit; compinit -u -D; PS1='READY>'\n"
        "unsetopt auto_menu list_ambiguous; setopt no_beep; LISTMAX=1000\n"
        "finish() { print -r -- \"<line>$BUFFER</line>\"; zle .kill-whole-line; zle -R; }; zle -N finish; bindkey '^X' finish\n")
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execvpe("zsh", ["zsh", "-i"], {**environment, "TERM": "vt100", "COLUMNS": "200", "LINES": "100",
                                          "ZDOTDIR": str(folder)})
    seen = ""

    def read_until(text, start, seconds=40):
        nonlocal seen
        end = time.monotonic() + seconds
        while text not in seen[start:] and time.monotonic() < end:
            if select.select([terminal], [], [], 0.2)[0]:
                try:
                    seen += os.read(terminal, 4096).decode(errors="replace")
                except OSError:
                    return
    read_until("READY>", 0)
    start = len(seen)
    os.write(terminal, line.encode() + b"\t\x18")
    read_until("</line>", start)
    os.close(terminal)
    os.waitpid(pid, 0)
    return seen[start:]


for shell, ask in (("bash", in_bash), ("fish", in_fish)):
    if not shutil.which(shell):
        left_out.append(shell)
        continue
    for line, expected in LINES.items():
        got = ask(line)
        check(got == expected, f"{shell}: '{line}' is completed with {got}, not {expected}")
if shutil.which("bash"):
    got = in_bash("coupler launch train\\ ")
    check(got == {"train ing"}, f"bash: a space in a name: {got}")
    got = in_bash("coupler launch -o training.mix")
    check(got == {"training.mixed_precision="}, f"bash: a key: {got}")
if shutil.which("zsh"):
    for line, whole in {"coupler config rec": "coupler config recommend ", "coupler launch --bind c":
                        "coupler launch --bind core ", "coupler launch -o training.mix":
                        "coupler launch -o training.mixed_precision=", "coupler launch --config=training":
                        "coupler launch --config=training.toml ", "coupler completion man check":
                        "coupler completion man checkpoints/", "coupler launch -o training.mixed_precision=b":
                        "coupler launch -o training.mixed_precision=bf16 "}.items():
        got = in_zsh(line)
        check(f"<line>{whole}</line>" in got, f"zsh: '{line}' is completed to\n{got}")
else:
    left_out.append("zsh")

print("\n".join(problems) or "completed")
if left_out:
    print(f"skipped, not installed: {', '.join(left_out)}")
sys.exit(bool(problems))
