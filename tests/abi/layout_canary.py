"""Proves that scripts/abi-layout --check detects changes that break plugins: each change is applied to a
copy of the headers and must be rejected with a diff that shows it."""
import pathlib
import shutil
import subprocess
import sys
import tempfile

root, compiler = pathlib.Path(sys.argv[1]), sys.argv[2]
HEADER = "coupler/distributed_backend.h"
CHANGES = [
    ("two fields of the same size swapped",
     "  db_kind kind;                /* the operation */\n  db_dtype dtype;              /* of the elements */\n",
     "  db_dtype dtype;\n  db_kind kind;\n", "+  8 4 dtype: db_dtype"),
    ("a field in the middle",
     "  int32_t failed_rank;", "  int64_t other_code;\n  int32_t failed_rank;", "+  16 8 other_code: int64_t"),
    ("a field removed",
     "  int32_t boolean; ", "  int32_t reserved; ", "+  20 4 reserved: int32_t"),
    ("another type of the same size",
     "  uint64_t flags;     /* DB_OP_* */", "  int64_t flags;     /* DB_OP_* */", "+  72 8 flags: int64_t"),
    ("a number that moved", "  DB_MAX = 4,", "  DB_MAX = 10,", "+enum DB_MAX 10"),
    ("another argument of a function",
     "int32_t *score);", "int64_t *score);", "int64_t *score)"),
    ("a field at the end, without the golden file",
     "\n} db_communicator_params;", "\n  uint64_t more;\n} db_communicator_params;", "+  96 8 more: uint64_t"),
    ("a gap", "  int32_t local_size;         /* number of ranks of this machine */\n", "", "has a gap"),
]


def check(include):
    return subprocess.run(
        [sys.executable, root / "scripts/abi-layout", "--check", "--include", include, "--cc", compiler],
        capture_output=True, text=True)


failures = 0
for what, old, new, shown in CHANGES:
    with tempfile.TemporaryDirectory() as folder:
        include = pathlib.Path(folder, "include")
        shutil.copytree(root / "api/include", include)
        text = (include / HEADER).read_text()
        if old not in text:
            print(f"FAILED: {what}: the header no longer has '{old.strip()}'; fix this test")
            failures += 1
            continue
        (include / HEADER).write_text(text.replace(old, new, 1))
        result = check(include)
        output = result.stdout + result.stderr
        if result.returncode != 1 or shown not in output:
            print(f"FAILED: {what}: exit code {result.returncode}, no '{shown}' in:\n{output}")
            failures += 1
if check(root / "api/include").returncode != 0:
    print("FAILED: the unchanged headers do not pass")
    failures += 1
sys.exit(failures != 0)
