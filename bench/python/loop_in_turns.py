"""The counterpart of bench/loop/loop.cc: the loop from Accelerate's documentation, in turns.

loop_in_turns.py [--model mlp|conv-net|gpt] [--precision no|bf16] --control SOCKET
Modes: default (AdamW with torch's defaults) and fused. bench/steps/control.h describes the protocol
of the control socket.
"""
import argparse

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

import control
import models

STEPS = 100000


def dataset(name):
    """The dataset, and the size of a batch."""
    if name == "gpt":
        text = torch.randint(8192, (160, 65))
        return TensorDataset(text[:, :-1].contiguous(), text[:, 1:].contiguous()), 4
    samples, shape = {"mlp": (6400, (784,)), "conv-net": (1280, (1, 28, 28))}[name]
    return TensorDataset(torch.rand(samples, *shape), torch.randint(10, (samples,))), 64


class Trainer:
    def __init__(self, accelerator, name, fused):
        self.accelerator = accelerator
        net = models.make(name)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, **({"fused": True} if fused else {}))
        warm_up = lambda step: min(1.0, step / 100) * max(0.0, 1 - step / STEPS)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warm_up)
        data, batch_size = dataset(name)
        loader = DataLoader(data, batch_size=batch_size, shuffle=True)
        self.net, self.optimizer, self.loader, self.scheduler = accelerator.prepare(
            net, optimizer, loader, scheduler)
        self.last = None

    def train(self, steps):
        done = 0
        while done < steps:
            for data, target in self.loader:
                with self.accelerator.accumulate(self.net):
                    loss = models.loss_of(self.net(data), target)
                    self.accelerator.backward(loss)
                    if self.accelerator.sync_gradients:
                        self.accelerator.clip_grad_norm_(self.net.parameters(), 1.0)
                    self.optimizer.step()
                    self.scheduler.step()
                    self.optimizer.zero_grad()
                self.last = loss.detach()
                done += 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--precision", default="no")
    parser.add_argument("--control", required=True)
    arguments = parser.parse_args()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, mixed_precision=arguments.precision)
    trainers = {mode: Trainer(accelerator, arguments.model, mode == "fused") for mode in ("default", "fused")}
    parameters = sum(p.numel() for p in models.make(arguments.model).parameters())

    control.serve(arguments.control, 0, parameters,
                  train=lambda mode, steps: trainers[mode].train(steps),
                  loss=lambda mode: trainers[mode].last.item())


if __name__ == "__main__":
    main()
