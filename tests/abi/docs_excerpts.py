"""Checks docs/write-a-plugin.md against the code: every C excerpt occurs in examples/plugin_in_c
("..." omits lines), and every quoted message in host/core/plugin."""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
page = (root / "docs/write-a-plugin.md").read_text()


def squeeze(text):
    return re.sub(r"\s+", "", text)


def sources(folder, *patterns):
    return squeeze("".join(path.read_text() for pattern in patterns
                           for path in sorted((root / folder).rglob(pattern))))


missing = []
example = sources("examples/plugin_in_c", "*.c", "*.h")
excerpts = re.findall(r"```c\n(.*?)```", page, re.S)
for excerpt in excerpts:
    for part in re.split(r"^\s*\.\.\.\s*$", excerpt, flags=re.M):
        if squeeze(part) not in example:
            missing.append(f"not in examples/plugin_in_c:\n{part}")

# Messages in the source are split into literals and placeholders; compares without both.
host = re.sub(r'""|\{[:.\w]*\}', "", sources("host/core/plugin", "*.cc"))
messages = [message for row in re.findall(r"^\| (`.*?) \|", page, re.M)
            for message in re.findall(r"`([^`]+)`", row)]
messages = [message for message in messages if not message.startswith("DB_")]
for message in messages:
    for part in re.split("…|coupler_distributed_backend_v1", message):
        if squeeze(part).strip(":") not in host:
            missing.append(f"no such message in host/core/plugin: '{part.strip()}' of '{message}'")

print(f"{len(excerpts)} excerpts, {len(messages)} messages")
if not excerpts or not messages:
    missing.append("found nothing to compare: fix this test")
print("\n".join(missing))
sys.exit(bool(missing))
