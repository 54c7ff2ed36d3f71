"""The counterpart of bench/steps/steps.cc: PyTorch's DDP and FSDP2 on gloo, trained in turns.

train_in_turns.py --model mlp|gpt --control SOCKET --rank R --world N --meet FILE [--modes A,B]
Modes: ddp, fsdp2 and their -fused variants on all ranks, single and single-fused on rank 0 alone.
FSDP2 wraps each Linear of the MLP and each Block of the GPT. bench/steps/control.h describes the
protocol of the control socket.
"""
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import control
import models
import process

WRAPPED = {"mlp": torch.nn.Linear, "gpt": models.Block}


class Trainer:
    def __init__(self, model_name, mode, batches):
        self.batches = batches
        self.distributed = not mode.startswith("single")
        self.net = models.make(model_name)
        if mode.startswith("ddp"):
            self.net = torch.nn.parallel.DistributedDataParallel(self.net)
        elif mode.startswith("fsdp2"):
            mesh = init_device_mesh("cpu", (dist.get_world_size(),))
            for module in self.net.modules():
                if isinstance(module, WRAPPED[model_name]):
                    fully_shard(module, mesh=mesh)
            fully_shard(self.net, mesh=mesh)
        fused = {"fused": True} if mode.endswith("-fused") else {}
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-4, **fused)
        self.last = None
        self.taken = 0  # over all turns, as in bench/steps/steps.cc

    def ready(self):
        if self.distributed:
            dist.barrier()

    def train(self, steps):
        for _ in range(steps):
            data, target = self.batches[self.taken % len(self.batches)]
            self.taken += 1
            loss = models.loss_of(self.net(data), target)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.last = loss.detach()


def main():
    parser = process.parser()
    for name in ("model", "control"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--modes", default="ddp,ddp-fused,single,single-fused")
    arguments = parser.parse_args()

    process.join(arguments)
    batches = models.batches(arguments.model, 100 + arguments.rank)
    modes = [mode for mode in arguments.modes.split(",")
             if arguments.rank == 0 or not mode.startswith("single")]
    trainers = {mode: Trainer(arguments.model, mode, batches) for mode in modes}
    parameters = sum(p.numel() for p in models.make(arguments.model).parameters())

    control.serve(arguments.control, arguments.rank, parameters,
                  ready=lambda mode: trainers[mode].ready(),
                  train=lambda mode, steps: trainers[mode].train(steps),
                  loss=lambda mode: trainers[mode].last.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
