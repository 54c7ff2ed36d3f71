"""The counterpart of bench/memory/memory.cc: peak memory of training the 201M MLP with FSDP2.

peak_memory.py --rank R --world N --meet FILE --report FOLDER; writes "BASE PEAK" (KiB) to FOLDER/R.
"""
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import process
from models import LargeMLP

BATCH, STEPS = 4, 4


def high_water():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))


def main():
    parser = process.parser()
    parser.add_argument("--report", required=True)
    arguments = parser.parse_args()
    process.join(arguments)
    dist.barrier()
    base = high_water()
    torch.manual_seed(0)
    net = LargeMLP()
    mesh = init_device_mesh("cpu", (arguments.world,))
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    generator = torch.Generator().manual_seed(arguments.rank)
    for _ in range(STEPS):
        data = torch.randn(BATCH, LargeMLP.WIDTH, generator=generator)
        target = torch.randint(0, LargeMLP.WIDTH, (BATCH,), generator=generator)
        torch.nn.functional.cross_entropy(net(data), target).backward()
        optimizer.step()
        optimizer.zero_grad()
    with open(os.path.join(arguments.report, str(arguments.rank)), "w") as file:
        print(base, high_water(), file=file)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
