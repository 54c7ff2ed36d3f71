"""The counterpart of bench/loader/loader.cc: torch's DataLoader over a TensorDataset, as in the
tutorials. loader_epochs.py [EPOCHS]"""
import statistics
import sys
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

SAMPLES, VALUES, BATCH = 60000, 784, 64


def epoch_of(loader):
    begin = time.perf_counter()
    samples = sum(len(data) for data, _ in loader)
    seconds = time.perf_counter() - begin
    assert samples == SAMPLES
    return seconds


def main():
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    torch.set_num_threads(1)
    dataset = TensorDataset(torch.rand(SAMPLES, VALUES), torch.randint(10, (SAMPLES,)))
    for shuffle in (False, True):
        loader = DataLoader(dataset, batch_size=BATCH, shuffle=shuffle)
        epoch_of(loader)  # warms memory and caches
        seconds = statistics.median(epoch_of(loader) for _ in range(epochs))
        print("shuffled" if shuffle else "sequential", f"{seconds:.6f}")


if __name__ == "__main__":
    main()
