"""Help, completion and man pages agree with the tables of the commands: each option is in all three and is
accepted, every help text ends with an example that parses, and a wrong word is an error on standard error.

    words.py COUPLER_PROGRAM SOURCE_DIR
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

program, source = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2])
problems = []
work = tempfile.TemporaryDirectory(prefix="coupler-words-")
environment = {"PATH": os.environ["PATH"], "HOME": work.name}
UNKNOWN = re.compile(r"unknown|does not know|knows no|no option|needs a value|lacks its value|takes no value|too many")


def run(*words, **more):
    return subprocess.run([program, *words], capture_output=True, text=True, timeout=120, cwd=work.name,
                          env={**environment, **more}, stdin=subprocess.DEVNULL)


def check(condition, text):
    if not condition:
        problems.append(text)


def candidates(*words):
    return [line.split("\t")[0] for line in run("complete", *words).stdout.splitlines()]


def help_of(command):
    return run(*command, "--help").stdout


def options(*command):
    return {word for word in candidates(*command, "-") if word.startswith("-") and word != "--"}


def fixture(name, text, mode=0o644):
    path = pathlib.Path(work.name, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


fixture("train", "#!/bin/sh\nexit 0\n", 0o755)
fixture("train.toml", "[training]\nseed = 1\n")
commands = candidates("")
check(len(commands) > 10, f"completion knows only {commands}")

# Words before and after the tried word, so that the trial ends at once.
TRIALS = {
    ("launch",): (["--dry-run"], ["./train"]),
    ("test",): (["--dry-run"], []),
    ("config", "import"): (["nothing.yaml"], []),
    ("config", "recommend"): ([], ["--", "/nowhere"]),
    ("estimate",): ([], ["/nowhere.safetensors"]),
    ("check-plugin",): (["/nowhere.so"], []),
    ("checkpoint", "convert"): (["/nowhere.pt", "target"], []),
    ("merge-weights",): (["/nowhere", "target"], []),
    ("report",): (["/nowhere"], []),
    ("bench", "collectives"): ([], ["--help"]),
}
VALUES = {"N": "2", "M": "2", "R": "0", "P": "29500", "H": "127.0.0.1", "KEY=VALUE": "training.seed=1",
          "FILE": "train.toml", "SIZE": "1G", "SIZE,...": "8", "OP,...": "all_reduce", "S": "1"}


def value_of(text, option):
    """A sample value of a documented option; "" if it takes none."""
    entry = re.search(rf"^  (?:-\S+, )*{re.escape(option)}(?:, -\S+)*(?: (\S+))?(?:  |$)", text, re.M)
    value = entry[1] if entry else None
    if not value:
        return ""
    return VALUES.get(value, "x" if value[0].isupper() else value.split("|")[0])


def listed(text):
    """The options that a help text lists."""
    rows = re.findall(r"^  (-[^\s,]+(?:, -[^\s,]+)*)(?: |$)", text, re.M)
    return {name for row in rows for name in row.split(", ")}


def on_page(command):
    """The options on a man page."""
    page = pathlib.Path(work.name, "man", f"coupler-{command}.1").read_text().replace("\\-", "-")
    return {name for row in re.findall(r"^\.TP\n(.*)$", page, re.M) for name in re.findall(r"\\fB(-.*?)\\fR", row)}


def forms(command):
    """Each form's words before its options: (config,), (config, check)."""
    yield (command,)
    for word in candidates(command, ""):
        if re.fullmatch(r"[a-z]+", word) and command != "completion":
            yield command, word


run("completion", "man", os.path.join(work.name, "man"))
for command in commands:
    documented = set()
    for form in forms(command):
        text = help_of(form)
        own = options(*form)
        documented |= own if form[1:] not in (("recommend",), ("keys",)) else set()  # which have pages of their own
        before, behind = TRIALS.get(form, ([], []))
        for option in sorted(own - {"-h", "--help"}):
            value = value_of(text + help_of(["launch"]) * (command in ("test", "config")), option)
            tried = run(*form, *before, option, *([value] if value else []), *behind,
                        PATH="/nowhere" if command == "setup-torch" else environment["PATH"])
            if form == ("bench",):
                continue  # bench alone is not a form
            check(not UNKNOWN.search(tried.stderr), f"{' '.join(form)} {option} is documented, but:\n{tried.stderr}")
            check("Traceback" not in tried.stderr, tried.stderr)
    if command in ("test", "config"):
        documented -= options("launch") - listed(help_of((command,)))  # which they pass on to launch
    check(documented == listed(help_of((command,))),
          f"{command}: completion and help differ in {documented ^ listed(help_of((command,)))}")
    check(documented == on_page(command), f"{command}: completion and man page differ in {documented ^ on_page(command)}")

# A program of its own reads the options of check-plugin.
taken = set(re.findall(r'"(--?[a-z][a-z-]*)"', (source / "tests/matrix/main.cc").read_text()))
taken -= {"--plugin", "--launcher", "--rank-of"}
check(taken | {"-h", "--help"} == options("check-plugin"), f"check-plugin: {taken ^ options('check-plugin')}")

# Every help ends with an example, and examples parse.
PATHS = {"setup-torch": "/nowhere"}  # no bash is found there; otherwise it would begin to download
for command in [(), *[(name,) for name in commands], ("config", "recommend")]:
    last = help_of(command).rstrip("\n").split("\n\n")[-1].splitlines()
    check(all(re.match(r"  (sudo )?coupler ", line) for line in last), f"{command}: no example at the end: {last}")
    for example in " && ".join(last).split(" && "):
        words = example.strip().removeprefix("sudo ").split()
        if words[0] != "coupler":
            continue
        if words[-2:-1] == [">"]:
            words = words[:-2]
        pathlib.Path(work.name, "train.toml").unlink(missing_ok=True)
        if "train.toml" in words:
            fixture("train.toml", "[training]\nseed = 1\n")
        tried = run(*words[1:], PATH=PATHS.get(words[1], environment["PATH"]))
        # Whether a file is a training program shows only when it runs; other files do not exist here.
        excused = any(text in tried.stderr
                      for text in ("without a dry run", "No such file", "is not there", "does not exist"))
        check((tried.returncode != 2 or excused) and "--help" not in tried.stderr,
              f"{example} ends with {tried.returncode}:\n{tried.stderr}")

# A wrong word: exit code 2, a message that names it on standard error, nothing on standard output.
for words in [("--frobnicate",), ("frobnicate",), *[(name, "--frobnicate") for name in commands],
              ("launch", "--frobnicate", "./train"), ("config", "check", "--frobnicate"),
              ("config", "default", "--frobnicate"), ("config", "import", "--frobnicate"),
              ("config", "recommend", "--frobnicate"), ("checkpoint", "list", "--frobnicate"),
              ("checkpoint", "convert", "--frobnicate"), ("check-plugin", "x.so", "--frobnicate"),
              ("bench", "collectives", "--frobnicate"), ("new", "frobnicate"), ("completion", "frobnicate"),
              ("completion", "bash", "frobnicate"), ("report", "x", "--frobnicate")]:
    if words[0] == "test" and not pathlib.Path(program).with_name("coupler-self-test").exists():
        continue  # a build without LibTorch
    tried = run(*words)
    check(tried.returncode == 2, f"{' '.join(words)} ends with {tried.returncode}, not 2:\n{tried.stderr}")
    check(tried.stdout == "", f"{' '.join(words)} prints on standard output:\n{tried.stdout}")
    check("coupler: error: " in tried.stderr and "frobnicate" in tried.stderr,
          f"{' '.join(words)} does not name the word:\n{tried.stderr}")

print("\n".join(problems) or f"{len(commands)} commands")
sys.exit(bool(problems))
