"""The counterpart of bench/big_model/big_model.cc: Accelerate's big-model inference, same files.

big_model.py --checkpoint FOLDER --control SOCKET, or --make FOLDER, which writes the checkpoint.
Modes: load, disk, output, drop, first, cold, empty, free and prepare-disk, as in the C++ program.
"""
import argparse
import glob
import os
import shutil
import threading

import torch
from accelerate import (Accelerator, disk_offload, init_empty_weights,
                        load_checkpoint_and_dispatch)

import control

WIDTH, LAYERS = 4096, 62


def model_of(width=WIDTH, layers=LAYERS, bias=False):
    return torch.nn.Sequential(*[torch.nn.Linear(width, width, bias=bias) for _ in range(layers)])


def make(folder):
    torch.manual_seed(0)
    Accelerator(cpu=True).save_model(model_of(), folder, max_shard_size="500MB")


class AnonymousMemory:
    """The peak growth of anonymous memory."""

    def __init__(self):
        self.before = self.highest = self.now()
        self.over = threading.Event()
        self.watcher = threading.Thread(target=self._watch)
        self.watcher.start()

    @staticmethod
    def now():
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("RssAnon:"))

    def _watch(self):
        while not self.over.wait(0.001):
            self.highest = max(self.highest, self.now())

    def mib(self):
        self.over.set()
        self.watcher.join()
        return (self.highest - self.before) / 1024


class Side:
    def __init__(self, checkpoint):
        self.checkpoint = checkpoint
        self.offload = os.path.join(os.path.dirname(checkpoint), "accelerate-offload")
        self.model = None
        self.answer = 0.0

    def forward(self, model):
        with torch.no_grad():
            return model(torch.ones(1, WIDTH)).sum().item()

    def load(self):
        with init_empty_weights():
            model = model_of()
        model = load_checkpoint_and_dispatch(model, self.checkpoint, device_map={"": "cpu"})
        with torch.no_grad():
            self.answer = sum(p.view(-1)[::1024].sum().item() for p in model.parameters())

    def prepare_disk(self):
        shutil.rmtree(self.offload, ignore_errors=True)
        with init_empty_weights():
            model = model_of()
        model = load_checkpoint_and_dispatch(model, self.checkpoint, device_map={"": "cpu"})
        self.model = disk_offload(model, self.offload)

    def disk(self):
        self.answer = self.forward(self.model)

    output = disk

    def drop(self):
        for path in glob.glob(os.path.join(self.checkpoint, "*.safetensors")) + \
                glob.glob(os.path.join(self.offload, "*.dat")):
            with open(path) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def first(self):
        folder = self.offload + "-first"
        shutil.rmtree(folder, ignore_errors=True)
        with init_empty_weights():
            model = model_of()
        # Accelerate does not offload if the map has only one place: the first layer stays in memory.
        places = {str(i): "disk" if i > 0 else "cpu" for i in range(LAYERS)}
        model = load_checkpoint_and_dispatch(model, self.checkpoint, device_map=places,
                                             offload_folder=folder)
        self.answer = self.forward(model)
        del model
        shutil.rmtree(folder, ignore_errors=True)

    def empty(self):
        with init_empty_weights():
            self.huge = model_of(10000, 1000, bias=True)

    def free(self):
        self.huge = None


def main():
    parser = argparse.ArgumentParser()
    for name in ("make", "checkpoint", "control"):
        parser.add_argument("--" + name)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.make:
        make(arguments.make)
        return
    side = Side(arguments.checkpoint)
    modes = {"load": side.load, "disk": side.disk, "output": side.output, "drop": side.drop,
             "first": side.first, "cold": side.disk, "empty": side.empty, "free": side.free,
             "prepare-disk": side.prepare_disk}
    watched = {}  # memory by mode

    def ready(mode):
        if mode in ("load", "disk"):
            watched[mode] = AnonymousMemory()

    def run(mode, times):
        for _ in range(times):
            modes[mode]()

    control.serve(arguments.control, 0, LAYERS * WIDTH * WIDTH, ready=ready, train=run,
                  loss=lambda mode: watched[mode].mib() if mode in watched else side.answer)


if __name__ == "__main__":
    main()
