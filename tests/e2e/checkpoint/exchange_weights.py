"""The network of the digits example in PyTorch and Accelerate: reads weights that Coupler wrote, or
writes weights for Coupler.

  exchange_weights.py read DIGITS.CSV PATH    prints the mean loss over the training rows
  exchange_weights.py read_bf16 DIGITS.CSV FOLDER  the same; compares it with the folder fp32 next to it
  exchange_weights.py write DIGITS.CSV FOLDER writes the same weights to one.safetensors, shards/, bin/
                                              and state/, and prints their mean loss
"""
import csv
import os
import sys

import torch
from accelerate import Accelerator, load_checkpoint_in_model
from safetensors.torch import load_file, save_file

TRAINING_ROWS = 1437


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = torch.nn.Linear(64, 128)
        self.fc2 = torch.nn.Linear(128, 10)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


def loss_of(net, path):
    with open(path, newline="") as file:
        rows = [[float(word) for word in row] for row in csv.reader(file)][:TRAINING_ROWS]
    table = torch.tensor(rows, dtype=torch.float32)
    with torch.no_grad():
        return torch.nn.functional.cross_entropy(net(table[:, :64] / 16), table[:, 64].long()).item()


def read(net, path):
    if os.path.isdir(path):
        load_checkpoint_in_model(net, path, strict=True)
    else:
        net.load_state_dict(load_file(path), strict=True)


def read_bf16(net, folder):
    """The folder's tensors are those of the folder fp32 next to it, rounded as PyTorch rounds."""
    rounded = load_file(os.path.join(folder, "model.safetensors"))
    whole = load_file(os.path.join(os.path.dirname(folder), "fp32", "model.safetensors"))
    assert rounded.keys() == whole.keys(), (rounded.keys(), whole.keys())
    for name, value in whole.items():
        assert rounded[name].dtype == torch.bfloat16, (name, rounded[name].dtype)
        assert torch.equal(rounded[name], value.to(torch.bfloat16)), name
    read(net, folder)


def write(net, folder):
    save_file(net.state_dict(), os.path.join(folder, "one.safetensors"))
    accelerator = Accelerator(cpu=True)
    accelerator.save_model(net, os.path.join(folder, "shards"), max_shard_size="20KB")
    accelerator.save_model(net, os.path.join(folder, "bin"), safe_serialization=False)
    prepared = accelerator.prepare(net, torch.optim.AdamW(net.parameters()))
    loss = prepared[0](torch.ones(1, 64)).sum()
    accelerator.backward(loss)
    prepared[1].step()  # gives the optimizer state
    with torch.no_grad():  # restores the weights of the other files
        for name, value in load_file(os.path.join(folder, "one.safetensors")).items():
            net.state_dict()[name].copy_(value)
    accelerator.save_state(os.path.join(folder, "state"))


def main():
    what, digits, path = sys.argv[1:]
    torch.manual_seed(3)
    net = Net()
    {"read": read, "read_bf16": read_bf16, "write": write}[what](net, path)
    print(f"final loss: {loss_of(net, digits)!r}")


main()
