"""The rows of the section "Every name" of docs/from-accelerate.md: each has code, a key of the TOML file,
a command of coupler, or "differently" or "no" with how or why. check_names.py reads the first column.

    rows.py PAGE FILE               writes the code as C++, one function for each row, for rows.cc to include
    rows.py PAGE --program COUPLER  tries the keys and commands
"""
import pathlib
import re
import subprocess
import sys
import tempfile

page = pathlib.Path(sys.argv[1])
text = page.read_text()
first = text.index("## Every name")
begin = text.count("\n", 0, first) + 1
code, keys, commands = [], [], []
count = 0
lines = text[first:].splitlines()
for number, line in enumerate(lines, begin):
    below = "".join(lines[number - begin + 1:number - begin + 2])
    if not line.startswith("|") or line.startswith("|---") or below.startswith("|---"):
        continue  # not a row, but text or a table's head
    cells = [cell.strip() for cell in re.split(r" \|(?= |$)", line[1:])]
    where = f"{page.name}:{number}"
    if len(cells) < 3:
        sys.exit(f"{where}: a row must have three cells")
    names, ours, differs = cells[:3]
    count += 1
    span = re.fullmatch(r"`([^`]+)`", ours)
    if ours in ("differently", "no"):
        if not differs:
            sys.exit(f"{where}: {names}: {ours}, but the third column does not say how or why")
    elif not span:
        sys.exit(f"{where}: '{ours}' is neither a code span nor differently nor no")
    elif re.fullmatch(r"coupler [a-z-]+", span[1]):
        commands.append((where, span[1].split()[1]))
    elif key := re.fullmatch(r"([a-z_0-9.]+) = ([^;]+)", span[1]):
        keys.append((where, key[1], key[2]))
    else:
        code.append((number, span[1]))


def write(target):
    here = pathlib.Path(__file__).parent
    names = re.findall(r"(\w+);$", re.search(r"struct Names \{\n(.*?)\};", (here / "rows.h").read_text(),
                                             re.S).group(1), re.M)
    parts = []
    # References, which lambdas can capture, also with clang.
    bound = "".join(f"  [[maybe_unused]] auto& {name} = names.{name};\n" for name in names)
    for number, row in code:
        parts.append(f"static void row_{number}(Names& names) {{\n{bound}"
                     f'#line {number} "{page}"\n  {{ {row} }}\n}}\n')
    table = ",\n".join(f"    {{{number}, row_{number}}}" for number, _ in code)
    parts.append(f"static const std::vector<Row>& rows() {{\n  static const std::vector<Row> all = {{\n{table}}};\n"
                 "  return all;\n}\n")
    pathlib.Path(target).write_text("\n".join(parts))


def try_out(program):
    def succeeds(*arguments):
        return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60).returncode == 0

    # A rank's backend checks the values of its own keys; some are read only with others.
    zero, folder = "backend.deepspeed_like.", tempfile.gettempdir()
    needed = {"backend.fsdp.group_size": ["backend.fsdp.strategy=hybrid_shard"],
              "backend.fsdp.unit_types": ["backend.fsdp.units=types"],
              "parallel.sequence": ["parallel.tensor=2"],
              "parallel.overlap_chunks": ["parallel.tensor=2"],
              "backend.fsdp.unit_min_parameters": ["backend.fsdp.units=size"],
              'backend.fsdp.units = "types"': ["backend.fsdp.unit_types=Linear"],
              zero + "offload_optimizer.nvme_path": [zero + "offload_optimizer.device=nvme"],
              zero + "offload_param.nvme_path": [zero + "stage=3", zero + "offload_param.device=nvme"],
              zero + "offload_param.device": [zero + "stage=3", f"{zero}offload_param.nvme_path={folder}"]}

    def is_key(key, value):
        settings = [f"{key}={folder if key.endswith('_path') else value}",
                    *needed.get(key, needed.get(f"{key} = {value}", []))]
        ranks = ["--no-ranks"]
        if backend := re.match(r"backend\.(\w+)\.", key):
            ranks = ["-n", "4"]
            settings.append(f"backend.use={backend[1]}")
        return succeeds("config", "check", *ranks, *(word for one in settings for word in ("-o", one)))

    problems = [f"{where}: coupler {command} does not exist" for where, command in commands
                if not succeeds(command, "--help")]
    problems += [f"{where}: {key} = {value} is rejected" for where, key, value in keys if not is_key(key, value)]
    wrong = [("training.no_such_key", "1"), ("backend.fsdp.no_such_key", "1"), ("backend.fsdp.units", "7")]
    if any(is_key(key, value) for key, value in wrong) or succeeds("no-such", "--help"):
        problems.append("unknown keys and commands pass")
    print(f"{count} rows: {len(code)} of code, {len(keys)} keys, {len(commands)} commands")
    sys.exit("\n".join(problems) or 0)


if sys.argv[2] == "--program":
    try_out(sys.argv[3])
write(sys.argv[2])
