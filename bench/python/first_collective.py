"""The counterpart of bench/startup/first_collective.cc, as Accelerate's users would write it."""
import sys

import torch
from accelerate import Accelerator


def peak_memory_kib():
    with open("/proc/self/status") as status:
        return next(line[6:].strip() for line in status if line.startswith("VmHWM:"))


accelerator = Accelerator(cpu=True)
total = accelerator.reduce(torch.ones(1)).item()
if accelerator.num_processes != 2 or total != 2:
    sys.exit(f"{accelerator.num_processes} processes, the sum over all ranks is {total}")
if len(sys.argv) == 3 and sys.argv[1] == "--report":
    with open(f"{sys.argv[2]}/{accelerator.process_index}", "w") as report:
        print(peak_memory_kib(), file=report)
accelerator.end_training()
