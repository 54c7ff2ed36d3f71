"""The training of examples/gpt in plain PyTorch DDP: the same model, text, optimizer and steps, with
torch's own communication hooks. Prints the loss on held-out text.

torchrun --nproc-per-node 2 text_loss.py --trained FILE --unseen FILE --steps N
    [--hook bf16|powersgd --powersgd-rank 4 --powersgd-start-step 60]
"""
import argparse
import datetime

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

import models

BATCH, SEQUENCE = 4, 128


def windows(path):
    """A file's bytes in windows of SEQUENCE, and the byte that follows each."""
    with open(path, "rb") as file:
        text = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
    count = (len(text) - 1) // SEQUENCE
    return (text[:count * SEQUENCE].view(count, SEQUENCE),
            text[1:count * SEQUENCE + 1].view(count, SEQUENCE))


def add_hook(net, arguments):
    if arguments.hook == "bf16":
        net.register_comm_hook(None, default_hooks.bf16_compress_hook)
    elif arguments.hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            process_group=None, matrix_approximation_rank=arguments.powersgd_rank,
            start_powerSGD_iter=arguments.powersgd_start_step)
        net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def train(net, arguments):
    data, target = windows(arguments.trained)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
    order = order[dist.get_rank()::dist.get_world_size()]
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for step in range(arguments.steps):
        chosen = order[step * BATCH:(step + 1) * BATCH]
        loss = models.loss_of(net(data[chosen].long()), target[chosen].long())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


@torch.no_grad()
def evaluate(net, path, samples=512):
    data, target = windows(path)
    count = min(samples, len(data))
    chosen = [i * len(data) // count for i in range(count)]
    total = 0.0
    for first in range(0, count, 16):
        part = chosen[first:first + 16]
        total += len(part) * models.loss_of(net(data[part].long()), target[part].long()).item()
    return total / count


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--trained", required=True)
    parser.add_argument("--unseen", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--hook", choices=("bf16", "powersgd"))
    parser.add_argument("--powersgd-rank", type=int, default=4)
    parser.add_argument("--powersgd-start-step", type=int, default=2)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=10))
    torch.manual_seed(0)
    model = models.GPT(vocabulary=256, width=384, layers=6, heads=6, sequence=SEQUENCE)
    # One bucket: with several over gloo, the hook orders operations differently on each rank.
    net = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1024)
    add_hook(net, arguments)
    train(net, arguments)
    if dist.get_rank() == 0:
        print(f"loss {evaluate(model, arguments.unseen):.5f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
