"""The counterpart of bench/mesh/mesh.cc: PyTorch on gloo, trained in turns.

mesh_in_turns.py --model tensor|context --control SOCKET --rank R --world N --meet FILE
tensor: layers divided by parallelize_module; modes default and fused are AdamW's.
context: sequences divided over the ranks; modes fsdp2, as Accelerate does with cp_size, and ddp say
how gradients are averaged.
"""
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.experimental._context_parallel import _attention as context
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import control
import models
import process

MODES = {"tensor": ("default", "fused"), "context": ("fsdp2", "ddp")}
SHAPES = {"tensor": {"vocabulary": 8192, "layers": 8, "sequence": 64, "rows": 4},
          "context": {"vocabulary": 256, "layers": 2, "sequence": 1024, "rows": 2}}
PLAN = {"te": RowwiseParallel(input_layouts=Replicate()),
        "blocks.*.[qkv]": ColwiseParallel(), "blocks.*.o": RowwiseParallel(),
        "blocks.*.f1": ColwiseParallel(), "blocks.*.f2": RowwiseParallel(),
        "head": ColwiseParallel(output_layouts=Replicate())}


class RingAttention(torch.autograd.Function):
    """The ring of torch's context_parallel with the kernels of the CPU.

    context_parallel itself replaces the kernels of GPUs only; on a CPU, torch 2.15 raises "Operator
    aten._scaled_dot_product_flash_attention_for_cpu.default does not have a sharding strategy
    registered", or, with the math kernel, "aten.add.Tensor got mixed torch.Tensor and DTensor".
    """

    @staticmethod
    def forward(ctx, query, key, value):
        output, weights = context._templated_ring_attention(
            dist.group.WORLD, 2, torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
            query, key, value, is_causal=True)
        ctx.save_for_backward(query, key, value, output, weights)
        return output

    @staticmethod
    def backward(ctx, gradient):
        query, key, value, output, weights = ctx.saved_tensors
        return context._templated_ring_attention_backward(
            dist.group.WORLD, 2,
            torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
            gradient, "grad_out", query, key, value, output, weights, is_causal=True, dropout_p=0.0)


def own_positions(sequence):
    """Those of an early and a late part, as both context_parallel and Coupler divide sequences."""
    parts = torch.arange(sequence).chunk(2 * dist.get_world_size())
    return torch.cat([parts[dist.get_rank()], parts[-1 - dist.get_rank()]])


class Trainer:
    def __init__(self, model, mode):
        shape = dict(SHAPES[model])
        rows, sequence = shape.pop("rows"), shape["sequence"]
        attend = RingAttention.apply if model == "context" else models.attend
        torch.manual_seed(0)
        self.net = models.DividedGPT(**shape, attend=attend)
        text = torch.randint(0, shape["vocabulary"], (rows, sequence + 1),
                             generator=torch.Generator().manual_seed(1))
        self.data, self.target = text[:, :-1].contiguous(), text[:, 1:].contiguous()
        self.own = own_positions(sequence) if model == "context" else None
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        if model == "tensor":
            parallelize_module(self.net, mesh, PLAN)
        elif mode == "fsdp2":
            for block in self.net.blocks:
                fully_shard(block, mesh=mesh)
            fully_shard(self.net, mesh=mesh)
        else:
            self.net = torch.nn.parallel.DistributedDataParallel(self.net)
        # A fused step takes tensors of one kind.
        kinds = {}
        for parameter in self.net.parameters():
            kinds.setdefault(isinstance(parameter, DTensor), []).append(parameter)
        fused = {"fused": True} if mode == "fused" else {}
        self.optimizer = torch.optim.AdamW([{"params": kind} for kind in kinds.values()], lr=1e-4,
                                           **fused)
        self.last = None

    def train(self, steps):
        for _ in range(steps):
            data, target = self.data, self.target
            if self.own is not None:
                data, target = data[:, self.own], target[:, self.own]
            loss = models.loss_of(self.net(data, self.own), target)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            loss = loss.detach()
            if self.own is not None:
                dist.all_reduce(loss)
                loss /= dist.get_world_size()
            self.last = loss.item()


def main():
    parser = process.parser()
    parser.add_argument("--model", choices=MODES, required=True)
    parser.add_argument("--control", required=True)
    arguments = parser.parse_args()

    process.join(arguments)
    trainers = {mode: Trainer(arguments.model, mode) for mode in MODES[arguments.model]}
    control.serve(arguments.control, arguments.rank, 0, ready=lambda mode: dist.barrier(),
                  train=lambda mode, steps: trainers[mode].train(steps),
                  loss=lambda mode: trainers[mode].last)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
