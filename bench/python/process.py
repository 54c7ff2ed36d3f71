"""One of the processes of a counterpart in Python: its arguments and its group on gloo."""
import argparse
import datetime

import torch
import torch.distributed as dist


def parser():
    """--rank, --world and --meet, a file that the processes meet in; callers add their own."""
    made = argparse.ArgumentParser()
    made.add_argument("--rank", type=int, required=True)
    made.add_argument("--world", type=int, required=True)
    made.add_argument("--meet", required=True)
    return made


def join(arguments):
    """Makes the process group; one thread computes, as in Coupler's processes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + arguments.meet, rank=arguments.rank,
                            world_size=arguments.world, timeout=datetime.timedelta(minutes=10))
