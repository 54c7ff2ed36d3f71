"""The counterpart of bench/checkpoint/checkpoint.cc: Accelerate's save_state and load_state.

checkpoint.py --control SOCKET --folder FOLDER, started by accelerate launch. Modes (steps, keep and
load) and the answer in place of the loss are as in the C++ program.
"""
import argparse
import os
import threading

import torch
from accelerate import Accelerator

import control
from models import LargeMLP

BATCH = 4


def status_kib(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name + ":"))


class ExtraMemory:
    """The peak growth of all resident memory, as the kernel records it, or of anonymous memory."""

    def __init__(self, anonymous):
        self.anonymous = anonymous
        self.before = self.highest = status_kib("RssAnon" if anonymous else "VmRSS")
        self.over = threading.Event()
        self.watcher = threading.Thread(target=self._watch)
        if anonymous:
            self.watcher.start()
        else:
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")  # resets VmHWM to the current VmRSS

    def _watch(self):
        while not self.over.wait(0.001):
            self.highest = max(self.highest, status_kib("RssAnon"))

    def mib(self):
        self.over.set()
        if self.anonymous:
            self.watcher.join()
        return ((self.highest if self.anonymous else status_kib("VmHWM")) - self.before) / 1024


def main():
    parser = argparse.ArgumentParser()
    for name in ("control", "folder"):
        parser.add_argument("--" + name, required=True)
    arguments = parser.parse_args()
    accelerator = Accelerator(cpu=True)
    if accelerator.num_processes != 2:
        raise SystemExit(f"{accelerator.num_processes} processes, not 2")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = LargeMLP()
    parameters = sum(p.numel() for p in net.parameters())
    net, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=1e-4))
    kept = os.path.join(arguments.folder, "kept")

    def train(steps):
        for _ in range(steps):
            target = torch.randint(0, LargeMLP.WIDTH, (BATCH,))
            accelerator.backward(torch.nn.functional.cross_entropy(
                net(torch.randn(BATCH, LargeMLP.WIDTH)), target))
            optimizer.step()
            optimizer.zero_grad()

    modes = {"steps": train, "keep": lambda _: accelerator.save_state(kept),
             "load": lambda _: accelerator.load_state(kept)}
    extra = {}  # memory of the last turn, by mode

    def ready(mode):
        accelerator.wait_for_everyone()
        extra[mode] = ExtraMemory(anonymous="-" in mode)

    control.serve(arguments.control, accelerator.process_index, parameters, ready=ready,
                  train=lambda mode, number: modes[mode.partition("-")[0]](number),
                  loss=lambda mode: extra[mode].mib())
    accelerator.end_training()


if __name__ == "__main__":
    main()
