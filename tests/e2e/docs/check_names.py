"""Every public name of Accelerate has a row in docs/from-accelerate.md or stands in the list of internals, and neither
of the two has a name that Accelerate lacks.

    check_names.py SOURCE_DIR           fails and names what is missing or unknown
    check_names.py SOURCE_DIR --list    prints every name with the lines of the page that have it

names_of_accelerate.json is the list (accelerate_names.py makes it), accelerate_internals.txt the internals. A name
has a row only if it is in backquotes in the first column of a table below "Every name", and read there as Python:

    `gather(x)`                                   a function or class that a module exports
    `AutocastKwargs(enabled=False)`               its option, field or member; also `AutocastKwargs().enabled`
    `accelerator.backward(loss, **kwargs)`        a member of the class that OBJECTS gives for this object, and its option
    `zero_stage`, `.zero_stage`, `zero_stage=3`   a member of a class, or an option of a function, that the row names
                                                  elsewhere or the head of the table: | Accelerate: `DeepSpeedPlugin` |
    `accelerate env --config_file`                a command and its flags
"""
import ast
import fnmatch
import json
import pathlib
import re
import sys

OBJECTS = {"accelerator": ["Accelerator"], "optimizer": ["AcceleratedOptimizer"], "scheduler": ["AcceleratedScheduler"],
           "dataloader": ["DataLoaderShard", "DataLoaderDispatcher", "DataLoaderAdapter", "DataLoaderStateMixin", "SkipDataLoader"],
           "tracker": ["GeneralTracker"], "local_sgd": ["LocalSGD"], "logger": ["MultiProcessAdapter"],
           "hook": ["UserCpuOffloadHook"]}
# What users of Accelerate write that is not Accelerate's own.
FOREIGN = {"torch.compile", "num_items_in_batch", "model.hf_device_map", "deepspeed.zero.Init", "DataLoader", "prof.step",
           # of the trackers that have them
           "tracker.log_images", "tracker.log_figure", "tracker.log_table", "tracker.log_artifact", "tracker.log_artifacts",
           "tracker.log_asset", "prof.key_averages", "prof.export_chrome_trace", "ACCELERATE_DEBUG_MODE", "DistributedOperationException", "model.parameters()[i].grad"}
MARK = "row_"  # stands for what is left out in front of a dot


def spans_of_page(text):
    """(line, spans of the first cell, spans of the table's head) of every row."""
    first = text.index("## Every name")
    begin = text.count("\n", 0, first) + 1
    lines = text[first:].splitlines()
    head = []
    for number, line in enumerate(lines):
        if not line.startswith("|") or line.startswith("|---"):
            continue
        cell = re.split(r" \|(?= |$)", line[1:])[0]
        spans = re.findall(r"`([^`]+)`", cell)
        if number + 1 < len(lines) and lines[number + 1].startswith("|---"):
            head = spans
        else:
            yield begin + number, spans, head


class Names:
    def __init__(self, listed):
        self.top = {name for names in listed["names"].values() for name in names}
        self.members = {owner: set(names) for owner, names in listed["members"].items()}
        self.commands = {command: set(flags) for command, flags in listed["commands"].items()}
        self.all = self.top | {f"{owner}.{name}" for owner, names in self.members.items() for name in names}
        self.all |= {f"{command} {flag}" for command, flags in self.commands.items() for flag in flags} | set(self.commands)


class Row:
    """What the spans of a row mention; problems are what Accelerate does not have."""

    def __init__(self, names, spans, head):
        self.names, self.mentioned, self.problems = names, set(), []
        self.owners, self.command = set(head), None
        self.final = False
        self.read(spans)  # finds the owners
        self.mentioned, self.problems, self.final = set(), [], True
        self.read(spans)

    def read(self, spans):
        for span in spans:
            if span.startswith(("accelerate ", "--")):
                self.read_command(span)
            else:
                self.read_python(span)

    def read_command(self, span):
        words = span.split()
        if words[0] == "accelerate":
            self.command = " ".join(words[:3]) if " ".join(words[:3]) in self.names.commands else " ".join(words[:2])
            if self.command not in self.names.commands:
                return self.complain(span)
            self.mentioned.add(self.command)
        for word in words:
            name = word.lower() if word.isupper() else word
            if word.startswith("--") or name in self.names.commands.get(self.command, ()):
                self.mention([self.command], name, span, " ")

    def read_python(self, span):
        text = re.sub(r"^@", "", span.strip().replace("…", "..."))
        text = re.sub(r"^with (.*):$", r"with \1: pass", text)
        if text.startswith("."):
            text = MARK + text
        try:
            nodes = ast.parse(text).body
        except SyntaxError:
            return self.complain(span, "is not read as Python")
        for node in nodes:
            if isinstance(node, ast.With):
                for item in node.items:
                    self.read_expression(item.context_expr, span)
            elif isinstance(node, ast.Expr):
                self.read_expression(node.value, span)
            elif isinstance(node, ast.Assign) and len(node.targets) == 1:
                self.read_expression(node.targets[0], span)
            else:
                self.complain(span, "is not a name, a call or a with")

    def read_expression(self, node, span):
        """Mentions what the expression names, and returns the owners that it stands for."""
        if isinstance(node, ast.Tuple):
            for one in node.elts:
                self.read_expression(one, span)
            return []
        if isinstance(node, ast.Call):
            called = self.read_expression(node.func, span)
            for argument in node.args:
                if isinstance(argument, ast.Call) and ast.unparse(argument.func) in self.names.top:
                    self.read_expression(argument, span)
            for keyword in node.keywords:
                self.mention(called, keyword.arg or "**" + ast.unparse(keyword.value), span)
            return called
        if isinstance(node, ast.Attribute):
            return self.read_attribute(node, span)
        if isinstance(node, ast.Name):
            return self.read_name(node.id, span)
        if isinstance(node, ast.Subscript):
            return self.read_expression(node.value, span)
        self.complain(span, "is not a name or a call")
        return []

    def read_attribute(self, node, span):
        if ast.unparse(node) in FOREIGN:
            return []
        base = node.value
        if isinstance(base, ast.Name):
            owners = OBJECTS.get(base.id) or ([base.id] if base.id in self.names.members else None)
            if base.id == MARK:
                owners = sorted(self.owners)
            elif owners is None:
                return self.complain(span) or []
        else:
            owners = self.read_expression(base, span)
        self.owners.update(owner for owner in owners)
        return self.read_member(owners, node.attr, span)

    def read_member(self, owners, name, span):
        found = [owner for owner in owners if name in self.names.members.get(owner, ())]
        if not found and self.final:
            self.complain(span)
        self.mentioned.update(f"{owner}.{name}" for owner in found)
        called = [f"{owner}.{name}" for owner in found if f"{owner}.{name}" in self.names.members]
        self.owners.update(called)
        return called or [f"{owner}.{name}" for owner in found]

    def read_name(self, name, span):
        if name in FOREIGN or name == "_":
            return []
        found = [owner for owner in self.owners if name in self.names.members.get(owner, ())]
        self.mentioned.update(f"{owner}.{name}" for owner in found)
        called = [f"{owner}.{name}" for owner in found if f"{owner}.{name}" in self.names.members]
        if name in self.names.top:
            self.mentioned.add(name)
            self.owners.add(name)
            return [name, *called]
        if name in self.names.members:
            self.owners.add(name)
            return [name]
        if not found and self.final:
            self.complain(span)
        self.owners.update(called)
        return called

    def mention(self, owners, name, span, between="."):
        """A function and a member may have the same name: the option is that of those which have it."""
        found = [full for full in (f"{owner}{between}{name}" for owner in owners) if full in self.names.all]
        self.mentioned.update(found)
        if owners and not found:
            self.complain(span, f"has {name}, which {' and '.join(owners)} does not have")

    def complain(self, span, why="has a name that Accelerate does not have"):
        if self.final:
            self.problems.append(f"`{span}` {why}")


def read_internals(path):
    """(line, pattern) of every entry; the others are headings with the reason, in brackets, and comments."""
    reason = None
    for number, line in enumerate(path.read_text().splitlines(), 1):
        line = line.strip()
        if line.startswith("["):
            reason = line
        elif line and not line.startswith("#"):
            if reason is None:
                sys.exit(f"{path.name}:{number}: an entry needs a heading with the reason in front of it")
            yield number, line


def main():
    here = pathlib.Path(__file__).parent
    page = pathlib.Path(sys.argv[1]) / "docs/from-accelerate.md"
    names = Names(json.loads((here / "names_of_accelerate.json").read_text()))
    problems, rows, count = [], {}, 0
    for line, spans, head in spans_of_page(page.read_text()):
        row = Row(names, spans, head)
        count += 1
        problems += [f"{page.name}:{line}: {problem}" for problem in row.problems]
        for name in row.mentioned:
            rows.setdefault(name, []).append(line)

    for unknown in ("accelerator.no_such_member", "gather(x, no_such_option=1)", "no_such_name", "gather all of it"):
        if not Row(names, [unknown], []).problems:
            problems.append(f"`{unknown}` passes, but Accelerate does not have it")

    internals = set()
    file = here / "accelerate_internals.txt"
    for line, pattern in read_internals(file):
        found = set(fnmatch.filter(names.all, pattern))
        if not found:
            problems.append(f"{file.name}:{line}: Accelerate does not have {pattern}")
        elif pattern in rows and "*" not in pattern:
            problems.append(f"{file.name}:{line}: {pattern} has a row, too: {page.name}:{rows[pattern][0]}")
        internals |= found
    if "--list" in sys.argv:
        for name in sorted(names.all):
            print(name, rows.get(name) or ("internal" if name in internals else "MISSING"))
    missing = sorted(names.all - set(rows) - internals)
    problems += [f"{name}: neither a row of {page.name} nor a line of {file.name}" for name in missing]
    has_row = names.all & set(rows)
    print(f"{len(names.all)} names of Accelerate: {len(has_row)} in {count} rows, {len(internals - has_row)} internal")
    sys.exit("\n".join(problems) or 0)


if __name__ == "__main__":
    main()
