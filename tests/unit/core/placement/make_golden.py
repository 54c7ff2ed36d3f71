#!/usr/bin/env python3
"""Makes device_maps.json: random module trees and the results of Accelerate's own functions for them.

Run it with an interpreter that has torch and accelerate 1.15:  python make_golden.py

A test cannot reproduce two things in Accelerate. The order of groups of tied parameters is
that of a Python set, different in each process: here it is the order of registration, which is
one of the possible orders. And a name counts as inside a module if the module's name occurs anywhere
in it ("0." in "10.weight"): top-level names are chosen so that this does not happen, except
in the cases made for it.

"kind" says how a case is to be compared:
  same       the map must be equal
  buffers    the map leaves buffers out (those of modules that are split): ours must be equal except for
             these, each of which has its own entry
  ties       the map separates tied parameters
  raised     Accelerate's own code raised an exception, or never finished
  collides   the same, and names collide as described above
  too_small  no device could hold the largest layer
"""
import collections
import json
import logging
import pathlib
import random
import signal
import sys
import warnings

import accelerate
import torch
from accelerate.utils import modeling

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)
WANTED = {"same": 500, "buffers": 60, "ties": 20, "raised": 40, "collides": 5, "too_small": 20}
ONE_DEVICE = 80  # at most this many of the equal cases may have the whole model on one device
DTYPES = ["float32", "float16", "bfloat16", "float64", "int64", "int8", "uint8", "bool", "float8_e4m3fn",
          "complex64"]
TYPES = ["Alpha", "Beta", "Gamma", "Delta"]
find_tied = modeling.find_tied_parameters


def find_tied_in_order(model, **kwargs):
    order = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    return sorted(find_tied(model, **kwargs), key=lambda group: min(order.index(n) for n in group))


modeling.find_tied_parameters = find_tied_in_order


class Late(Exception):
    pass


def on_alarm(*_):
    raise Late("still running after 5 s")


signal.signal(signal.SIGALRM, on_alarm)


class Maker:
    """One random tree as a torch module."""

    def __init__(self, rng, colliding=False):
        self.rng = rng
        self.colliding = colliding
        self.types = rng.random() < 0.5  # tensors of several dtypes
        self.scale = rng.choice([10, 100, 1000, 100000])
        self.parameters = []
        self.modules = []

    def tensor(self):
        rng = self.rng
        numel = rng.choice([1, 3, rng.randint(1, self.scale), rng.randint(1, self.scale), self.scale])
        dtype = "float32"
        if self.types:
            dtype = rng.choice(DTYPES if rng.random() < 0.4 else DTYPES[:3])
        if dtype == "bool":
            numel = (numel + 7) // 8 * 8
        return torch.empty(numel, dtype=getattr(torch, dtype), device="meta")

    def parameter(self, module, name):
        rng = self.rng
        if self.parameters and rng.random() < self.tie:
            value = rng.choice(self.parameters)
        else:
            data = self.tensor()
            value = torch.nn.Parameter(data, requires_grad=data.is_floating_point())
            self.parameters.append(value)
        module.register_parameter(name, value)

    def fill(self, module, leaf):
        rng = self.rng
        count = rng.choice([0, 1, 2, 2, 3]) if leaf else rng.choice([0, 0, 0, 0, 1, 2])
        for i in range(count):
            self.parameter(module, ["weight", "bias", "scale"][i])
        if rng.random() < (0.15 if leaf else self.inner_buffers):
            module.register_buffer("steps", self.tensor(), persistent=rng.random() < 0.6)

    def module(self, depth, levels):
        rng = self.rng
        result = type(rng.choice(TYPES), (torch.nn.Module,), {})()
        leaf = depth == levels or rng.random() < 0.2
        self.fill(result, leaf)
        if not leaf:
            self.children(result, depth, levels)
        self.modules.append(result)
        return result

    def children(self, parent, depth, levels):
        rng = self.rng
        names = [str(i) for i in range(12)] if rng.random() < 0.4 else list("abcdefghijkl")
        if depth == 0 and not self.colliding:
            names = list("ABCDEFGHIJKL")
        repeated = rng.random() < 0.3
        count = rng.choice([1, 2, 3, 3, 4, 6])
        kind, seed = rng.choice(TYPES), rng.random()
        for i in range(count):
            if self.modules and rng.random() < self.share:
                child = rng.choice(self.modules)
            elif repeated and depth + 1 < levels:
                # Identical blocks, as in transformers.
                state = rng.getstate()
                rng.seed(seed)
                child = self.module(depth + 1, levels)
                child.__class__ = type(kind, (torch.nn.Module,), {})
                rng.setstate(state)
                rng.random()
            else:
                child = self.module(depth + 1, levels)
            parent.add_module(names[i], child)

    def model(self):
        rng = self.rng
        self.tie = rng.choice([0, 0, 0.1, 0.2])
        self.share = rng.choice([0, 0, 0, 0.1])
        self.inner_buffers = rng.choice([0, 0, 0.3])
        root = torch.nn.Module()
        if rng.random() < 0.15:
            self.parameter(root, "W")
        if rng.random() < 0.1:
            root.register_buffer("V", self.tensor())
        self.children(root, 0, rng.choice([1, 2, 2, 3, 3]))
        return root


def described(module, name, tensors, modules):
    """[name, class, object, [[tensor, elements, dtype, p/b/t, storage]…], [children…]]"""
    row = []
    for kind, group in (("p", module._parameters), ("b", module._buffers)):
        for key, value in group.items():
            if value is None:
                continue
            tag = "t" if kind == "b" and key in module._non_persistent_buffers_set else kind
            row.append([key, value.numel(), str(value.dtype)[6:], tag,
                        tensors.setdefault(id(value), len(tensors))])
    return [name, type(module).__name__, modules.setdefault(id(module), len(modules)), row,
            [described(child, key, tensors, modules) for key, child in module._modules.items()]]


def inputs(rng, model):
    total = max(1, int(modeling.compute_module_sizes(model)[""]))
    gpus = rng.choice([0, 1, 1, 2, 2, 2, 3, 4])
    memory = []
    for gpu in range(gpus):
        share = rng.choice([rng.random() * 0.2, rng.random() * 0.6, rng.random() * 1.2, 1 / max(gpus, 1)])
        memory.append([gpu, 0 if rng.random() < 0.04 else int(total * share)])
    if rng.random() < 0.8 or not gpus:
        memory.append(["cpu", int(total * rng.choice([rng.random(), rng.random() * 2, 10]))])
    mode = rng.choice(["sequential", "sequential", "balanced", "balanced_low_0"])
    if rng.random() < 0.05 and mode == "sequential":
        memory.append(["disk", total])
    if rng.random() < 0.2:
        rng.shuffle(memory)
    names = [name for name, _ in model.named_parameters()]
    case = {"max_memory": memory, "mode": mode,
            "no_split": rng.sample(TYPES, rng.choice([0, 0, 1, 1, 2])),
            "dtype": rng.choice([None, None, None, "float16", "bfloat16", "float32", "int8"]),
            "special": {}, "offload_buffers": rng.random() < 0.3, "clean": rng.random() < 0.8,
            "fallback": rng.random() < 0.25}
    if names and rng.random() < 0.2:
        for name in rng.sample(names, min(len(names), rng.choice([1, 1, 3]))):
            case["special"][name] = rng.choice(["float32", "float16", "int8"])
    return case


def answer(model, case):
    """Accelerate's own results: the balanced memory, and the map."""
    keywords = {"no_split_module_classes": list(case["no_split"]), "dtype": case["dtype"],
                "special_dtypes": dict(case["special"]) or None}
    memory = {device: size for device, size in case["max_memory"]}
    if case["mode"] != "sequential":
        memory = modeling.get_balanced_memory(model, memory, low_zero=case["mode"] == "balanced_low_0",
                                              **keywords)
        case["balanced"] = [[device, int(size)] for device, size in memory.items()]
    return modeling.infer_auto_device_map(model, memory, clean_result=case["clean"],
                                          offload_buffers=case["offload_buffers"],
                                          fallback_allocation=case["fallback"], **keywords)


def device_of(name, device_map):
    while name not in device_map:
        if not name:
            return None
        name = name.rpartition(".")[0]
    return device_map[name]


def kind_of(model, case):
    if "error" in case:
        return "raised"
    device_map = case["map"]
    parameters = dict(model.named_parameters(remove_duplicate=False))
    buffers = dict(model.named_buffers(remove_duplicate=False))
    if any(device_of(name, device_map) is None for name in parameters):
        return "ties"  # names other than the first of a shared module
    where = collections.defaultdict(set)
    for name, value in parameters.items():
        where[id(value)].add(device_of(name, device_map))
    if any(len(devices) > 1 for devices in where.values()):
        return "ties"
    if any(device_of(name, device_map) is None for name in buffers):
        return "buffers"
    return "collides" if collides(model) else "same"


def collides(model):
    """Whether a tied parameter's name contains a module's name other than as its prefix."""
    tied = [name + "." for group in modeling.find_tied_parameters(model) for name in group]
    return any(module and module + "." in name and not name.startswith(module + ".")
               for module, _ in model.named_modules(remove_duplicate=False) for name in tied)


def too_small(model, case):
    sizes = modeling.compute_module_sizes(model, dtype=case["dtype"], special_dtypes=case["special"] or None)
    roots = (list(model.named_parameters(recurse=False)) + list(model.named_children())
             + list(model.named_buffers(recurse=False)))
    largest, _ = modeling.get_max_layer_size(roots, sizes, case["no_split"])
    return largest > max([size for device, size in case["max_memory"] if device != "disk"])


def make(seed):
    rng = random.Random(seed)
    model = Maker(rng, colliding=rng.random() < 0.1).model()
    if not list(model.named_parameters()):
        return None
    case = inputs(rng, model)
    signal.alarm(5)
    try:
        case["map"] = answer(model, case)
    except Exception as error:  # whatever it is, it is Accelerate's result
        case["error"] = f"{type(error).__name__}: {error}"[:100]
    finally:
        signal.alarm(0)
    case["kind"] = "too_small" if too_small(model, case) else kind_of(model, case)
    case["seed"] = seed
    case["tree"] = described(model, "", {}, {})
    return case


def gpt_j():
    """GPT-J-6B as transformers registers it, without its weights."""
    nn, width = torch.nn, 4096

    def module(name, **children):
        result = type(name, (nn.Module,), {})()
        for key, child in children.items():
            result.add_module(key, child)
        return result

    def block():
        attention = module("GPTJAttention", attn_dropout=nn.Dropout(), resid_dropout=nn.Dropout(),
                           **{f"{k}_proj": nn.Linear(width, width, bias=False) for k in ("k", "v", "q", "out")})
        attention.register_buffer("embed_positions", torch.empty(2048, 64), persistent=False)
        mlp = module("GPTJMLP", fc_in=nn.Linear(width, 4 * width), fc_out=nn.Linear(4 * width, width),
                     act=nn.Tanh(), dropout=nn.Dropout())
        return module("GPTJBlock", ln_1=nn.LayerNorm(width), attn=attention, mlp=mlp)

    with torch.device("meta"):
        transformer = module("GPTJModel", wte=nn.Embedding(50400, width), drop=nn.Dropout(),
                             h=nn.ModuleList([block() for _ in range(28)]), ln_f=nn.LayerNorm(width))
        model = module("GPTJForCausalLM", transformer=transformer, lm_head=nn.Linear(width, 50400))
    case = {"max_memory": [[0, 20 * 2**30], [1, 20 * 2**30]], "mode": "sequential", "no_split": ["GPTJBlock"],
            "dtype": None, "special": {}, "offload_buffers": False, "clean": True, "fallback": False}
    case["map"] = answer(model, case)
    case["tree"] = described(model, "", {}, {})
    return case


def has_ties(tree):
    storages = []

    def visit(node):
        storages.extend(tensor[4] for tensor in node[3] if tensor[3] == "p")
        for child in node[4]:
            visit(child)

    visit(tree)
    return len(set(storages)) < len(storages)


def main():
    cases, counts, seed = [], collections.Counter(), 0
    while any(counts[kind] < number for kind, number in WANTED.items()) and seed < 40000:
        case = make(seed)
        seed += 1
        if case is None or counts[case["kind"]] >= WANTED[case["kind"]]:
            continue
        if case["kind"] == "same" and len(set(case["map"].values())) == 1:
            if counts["one device"] == ONE_DEVICE:
                continue
            counts["one device"] += 1
        counts[case["kind"]] += 1
        cases.append(case)
    same = [case for case in cases if case["kind"] == "same"]
    print(dict(counts), "after", seed, "trees; of the equal ones:")
    for key in ("mode", "dtype", "fallback", "clean", "offload_buffers"):
        print(" ", key, dict(collections.Counter(case[key] for case in same)))
    print("  with tied parameters", sum(has_ties(case["tree"]) for case in same), "with special dtypes",
          sum(bool(case["special"]) for case in same), "with no_split", sum(bool(case["no_split"]) for case in same))
    print("  devices in the map", dict(collections.Counter(len(set(case["map"].values())) for case in same)))
    result = {"accelerate": accelerate.__version__, "torch": torch.__version__, "gpt_j": gpt_j(), "cases": cases}
    path = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).with_name("device_maps.json"))
    lines = [json.dumps({k: v for k, v in result.items() if k != "cases"}, separators=(",", ":"))[:-1]]
    path.write_text(lines[0] + ',"cases":[\n'
                    + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "\n]}\n")
    print(path, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
