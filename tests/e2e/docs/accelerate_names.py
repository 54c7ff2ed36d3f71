"""Lists the public names of Accelerate: what its modules export, members of its main classes, fields of its
dataclasses, members of its enumerations, options of its functions, and its commands with their flags. It reads the
sources and imports nothing, so the list does not depend on other installed packages.

    accelerate_names.py FILE     with a Python that has Accelerate 1.15: writes the list, names_of_accelerate.json
    accelerate_names.py --check  compares the list with the installed Accelerate; exits with 77 if there is none

COUPLER_TEST_PYTHON names a Python that has Accelerate, if this one does not.

The list has these sections; check_names.py compares them with docs/from-accelerate.md:

    names       modules -> exported functions, classes and constants
    members     class, or function -> members and fields; options, which are the parameters with a default
    commands    command of the program accelerate -> its flags
"""
import ast
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import sys

# The modules from which programs import by name, and what they define; the two packages list what they export.
MODULES = ["state", "tracking", "hooks", "big_modeling", "launchers", "local_sgd", "logging", "data_loader", "optimizer",
           "scheduler", "checkpointing", "inference", "utils/memory"]
# The classes that programs use through objects; dataclasses and enumerations are found by themselves.
CLASSES = {"accelerator.py": ["Accelerator"],
           "state.py": ["PartialState", "AcceleratorState", "GradientState"],
           "optimizer.py": ["AcceleratedOptimizer"],
           "scheduler.py": ["AcceleratedScheduler"],
           "data_loader.py": ["DataLoaderAdapter", "DataLoaderDispatcher", "DataLoaderShard", "DataLoaderStateMixin",
                              "SkipDataLoader", "SeedableRandomSampler", "BatchSamplerShard", "IterableDatasetShard"],
           "tracking.py": ["GeneralTracker"],
           "local_sgd.py": ["LocalSGD"],
           "logging.py": ["MultiProcessAdapter"],
           "hooks.py": ["ModelHook", "SequentialHook", "AlignDevicesHook", "UserCpuOffloadHook"]}
RECORDS = ["utils/dataclasses.py", "parallelism_config.py"]
# Functions whose options are listed, besides those that `accelerate` itself exports.
FUNCTIONS = {"utils/operations.py": ["gather", "gather_object", "broadcast", "broadcast_object_list", "reduce", "concatenate",
                                     "pad_across_processes", "send_to_device", "slice_tensors", "recursively_apply"],
             "utils/random.py": ["set_seed"],
             "utils/other.py": ["save", "load", "extract_model_from_parallel"],
             "utils/modeling.py": ["get_balanced_memory", "get_max_memory", "compute_module_sizes"],
             "utils/bnb.py": ["load_and_quantize_model"],
             "utils/tqdm.py": ["tqdm"],
             "hooks.py": ["add_hook_to_module"],
             "big_modeling.py": ["attach_layerwise_casting_hooks"],
             "logging.py": ["get_logger"]}
# The classes of which the constructor's options are listed, too.
CONSTRUCTORS = {"Accelerator", "PartialState", "AcceleratorState", "AcceleratedOptimizer", "AcceleratedScheduler", "LocalSGD",
                "GeneralTracker", "SeedableRandomSampler", "BatchSamplerShard", "IterableDatasetShard"}


def is_public(name):
    return not name.startswith("_")


def exports(tree, package):
    """The names that a package imports from its own modules, also those that depend on what is installed."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            yield from (alias.asname or alias.name for alias in node.names)


def definitions(nodes):
    """Functions and classes of a module, also those below an `if` or `try`."""
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node
        elif isinstance(node, (ast.If, ast.Try)):
            yield from definitions(node.body)


def options(function):
    """The parameters that may be left out; the name of the dictionary for further ones."""
    arguments = function.args
    plain = arguments.posonlyargs + arguments.args
    with_default = plain[len(plain) - len(arguments.defaults):] if arguments.defaults else []
    names = {argument.arg for argument in with_default + arguments.kwonlyargs}
    if arguments.kwarg and function.name != "__init__":
        names.add("**" + arguments.kwarg.arg)
    return sorted(filter(is_public, names))


def attributes(function):
    """What a constructor sets: self.x = …"""
    for node in ast.walk(function):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        for target in targets:
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
                yield target.attr


def members(node):
    names = set()
    for item in node.body:
        if isinstance(item, ast.FunctionDef):
            names.add(item.name)
            if item.name == "__init__":
                names.update(attributes(item))
                if node.name in CONSTRUCTORS:
                    names.update(options(item))
        elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            names.add(item.target.id)
        elif isinstance(item, ast.Assign):
            names.update(target.id for target in item.targets if isinstance(target, ast.Name))
    return sorted(name for name in names if name.isidentifier() and is_public(name))


def is_record(node):
    """Whether a class is a dataclass or an enumeration."""
    return (any(isinstance(one, ast.Name) and one.id == "dataclass" for one in node.decorator_list)
            or any("Enum" in ast.unparse(base) for base in node.bases))


def flags(tree):
    """Of the parsers of a command: what it adds, positional names as well."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            names = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            if names:  # a short form stands for a long one
                yield next((name for name in names if name.startswith("--")), names[0])


def collect(folder):
    trees = {path.relative_to(folder).as_posix(): ast.parse(path.read_text()) for path in sorted(folder.rglob("*.py"))
             if "test_utils" not in path.parts}
    names = {"accelerate": exports(trees["__init__.py"], folder), "accelerate.utils": exports(trees["utils/__init__.py"], folder)}
    for module in MODULES:
        names["accelerate." + module.replace("/", ".")] = [node.name for node in definitions(trees[f"{module}.py"].body)]
    modules = {pathlib.PurePath(path).stem for path in trees}
    names = {module: sorted(name for name in set(found) if is_public(name) and not (name in modules and name != "tqdm"))
             for module, found in names.items()}

    of_classes, functions = {}, set(names["accelerate"])
    for path, tree in trees.items():
        for node in definitions(tree.body):
            if isinstance(node, ast.ClassDef) and is_public(node.name):
                if node.name in CLASSES.get(path, []) or (path in RECORDS and is_record(node)):
                    of_classes[node.name] = members(node)
                if node.name == "Accelerator":
                    for item in node.body:
                        if isinstance(item, ast.FunctionDef) and is_public(item.name) and options(item):
                            of_classes[f"Accelerator.{item.name}"] = options(item)
            elif isinstance(node, ast.FunctionDef) and "commands" not in path:
                if options(node) and (node.name in FUNCTIONS.get(path, []) or (node.name in functions and "/" not in path)):
                    of_classes[node.name] = options(node)
                elif options(node) and node.name in functions and path.startswith("utils/"):
                    of_classes[node.name] = options(node)

    files = {"config": "config/config", "config default": "config/default", "config update": "config/update",
             "env": "env", "estimate-memory": "estimate", "launch": "launch", "merge-weights": "merge", "test": "test",
             "to-fsdp2": "to_fsdp2", "tpu-config": "tpu"}
    programs = {f"accelerate {command}": sorted(set(flags(trees[f"commands/{file}.py"]))) for command, file in files.items()}
    listed = ast.unparse(trees["commands/accelerate_cli.py"]).count("_parser(subparsers=")
    if listed != sum(" " not in command for command in files):
        sys.exit(f"accelerate has {listed} commands: {pathlib.Path(__file__).name} lists others")
    return {"version": importlib.metadata.version("accelerate"), "names": dict(sorted(names.items())),
            "members": dict(sorted(of_classes.items())), "commands": programs}


def check():
    spec = importlib.util.find_spec("accelerate")
    if spec is None:
        if other := os.environ.pop("COUPLER_TEST_PYTHON", ""):
            os.execv(other, [other, *sys.argv])
        print("Accelerate is not installed")
        sys.exit(77)
    found = collect(pathlib.Path(spec.origin).parent)
    stored = json.loads((pathlib.Path(__file__).parent / "names_of_accelerate.json").read_text())
    if not found["version"].startswith("1.15."):
        print(f"Accelerate {found['version']} is installed, not 1.15")
        sys.exit(77)
    for section in ("names", "members", "commands"):
        for owner in sorted(found[section].keys() | stored[section].keys()):
            now, before = set(found[section].get(owner, [])), set(stored[section].get(owner, []))
            for name in sorted(now ^ before):
                print(f"{owner}: {name} is only in {'Accelerate' if name in now else 'names_of_accelerate.json'}")
    sys.exit(any(found[section] != stored[section] for section in ("names", "members", "commands")))


def main():
    if sys.argv[1:] == ["--check"]:
        check()
    spec = importlib.util.find_spec("accelerate")
    if spec is None or len(sys.argv) != 2:
        sys.exit(__doc__)
    found = collect(pathlib.Path(spec.origin).parent)
    pathlib.Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n")
    count = sum(len(one) for section in ("names", "members", "commands") for one in found[section].values())
    print(f"Accelerate {found['version']}: {count} entries")


if __name__ == "__main__":
    main()
