"""The counterpart of bench/steps/steps.cc on a GPU: Accelerate, eager and compiled, in turns.

accelerate_in_turns.py --model gpt2-small --control SOCKET --precision bf16
Modes: eager, compiled, and profile:FILE (eager, with a trace of the turn). bench/steps/control.h
describes the protocol of the control socket.
"""
import argparse

import torch
from accelerate import Accelerator

import control
import models


class Trainer:
    def __init__(self, accelerator, model_name, compiled, batches):
        self.accelerator = accelerator
        net = models.make(model_name)
        if compiled:
            net = torch.compile(net)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
        self.net, self.optimizer = accelerator.prepare(net, optimizer)
        self.batches = batches
        self.last = None
        self.taken = 0  # over all turns, as in bench/steps/steps.cc

    def train(self, steps):
        for _ in range(steps):
            data, target = self.batches[self.taken % len(self.batches)]
            self.taken += 1
            with self.accelerator.autocast():
                loss = models.loss_of(self.net(data), target)
            self.accelerator.backward(loss)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.last = loss.detach()
        torch.cuda.synchronize()


def main():
    parser = argparse.ArgumentParser()
    for name in ("model", "control", "precision"):
        parser.add_argument("--" + name, required=True)
    arguments = parser.parse_args()
    accelerator = Accelerator(mixed_precision=arguments.precision)
    batches = [(data.to(accelerator.device), target.to(accelerator.device))
               for data, target in models.batches(arguments.model, 100)]
    trainers = {mode: Trainer(accelerator, arguments.model, mode == "compiled", batches)
                for mode in ("eager", "compiled")}
    parameters = sum(p.numel() for p in trainers["eager"].net.parameters())

    trained = lambda mode: trainers["eager" if mode.startswith("profile:") else mode]

    def train(mode, steps):
        if not mode.startswith("profile:"):
            trained(mode).train(steps)
            return
        with torch.profiler.profile() as profile:
            trained(mode).train(steps)
        profile.export_chrome_trace(mode.removeprefix("profile:"))

    control.serve(arguments.control, 0, parameters, train=train,
                  loss=lambda mode: trained(mode).last.item())


if __name__ == "__main__":
    main()
