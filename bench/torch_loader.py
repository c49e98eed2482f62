"""Measures one epoch of Python's torch DataLoader over Fashion-MNIST, batch 32, shuffled. Run by loader_bench --python.

usage: torch_loader.py tensors|samples|batches WORKERS

Prints {"seconds": x}. Datasets: torch's TensorDataset, sample by sample; one whose __getitems__ returns a list of
samples, collated by default_collate; one whose __getitems__ returns a complete batch.
"""
import json
import os
import sys
import time
import warnings

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../properties/oracle"))
import tasks

BATCH = 32


class Samples(torch.utils.data.TensorDataset):
    def __getitems__(self, indices):
        return list(zip(*(tensor[indices] for tensor in self.tensors)))


class Batches(torch.utils.data.TensorDataset):
    def __getitems__(self, indices):
        return tuple(tensor[indices] for tensor in self.tensors)


def seconds_per_epoch(dataset, workers):
    options = {"collate_fn": lambda batch: batch} if isinstance(dataset, Batches) else {}
    loader = torch.utils.data.DataLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=workers, **options)
    samples, started = 0, time.perf_counter()
    for _, labels in loader:
        samples += len(labels)
    return time.perf_counter() - started


def main():
    warnings.simplefilter("ignore")  # more workers than cores
    torch.set_num_threads(1)  # as in loader_bench; on few cores more threads make this loader slower
    tensors = tasks.load({"task": "fashion_mnist"})[0].tensors
    kind = {"tensors": torch.utils.data.TensorDataset, "samples": Samples, "batches": Batches}[sys.argv[1]]
    print(json.dumps({"seconds": seconds_per_epoch(kind(*tensors), workers=int(sys.argv[2]))}))


if __name__ == "__main__":
    main()
