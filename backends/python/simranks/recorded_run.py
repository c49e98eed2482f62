"""Reads what a run has recorded with the elements of its tensors: see simranks.values."""

import collections
import json
import os
from dataclasses import dataclass, field

import torch

from simranks.tensors import dtype_of


@dataclass(frozen=True)
class Key:
    """What is observed on every rank: the `count`-th observation of this kind and name in a step."""

    step: int
    kind: str
    name: str
    count: int


@dataclass
class Seen:
    tensors: list  # descriptions, for RecordedRun.tensor
    calls: list  # of collectives, of the rank since its observation before: see simranks.values


@dataclass
class _Rank:
    values: bytes
    seen: dict = field(default_factory=dict)  # by key, in the order of the program


class RecordedRun:
    def __init__(self, folder, num_ranks):
        self.num_ranks = num_ranks
        self._ranks = [self._read(folder, rank) for rank in range(num_ranks)]

    def _read(self, folder, rank):
        lines, values = (os.path.join(folder, f"rank{rank}.{suffix}") for suffix in ("jsonl", "values"))
        own, counts = _Rank(b""), collections.Counter()
        if not os.path.exists(values):
            return own  # it ended before it computed anything
        with open(values, "rb") as file:
            own.values = file.read()
        with open(lines, encoding="utf-8") as file:
            for line in file:
                if not line.endswith("\n"):
                    break  # of a process that was killed
                record = json.loads(line)
                same = record["step"], record["kind"], record["name"]
                own.seen[Key(*same, counts[same])] = Seen(record.get("tensors", []), record.get("calls", []))
                counts[same] += 1
        return own

    def keys(self, rank):
        """In the order of the program."""
        return list(self._ranks[rank].seen)

    def find(self, rank, key):
        """None if the rank has no such observation."""
        return self._ranks[rank].seen.get(key)

    def tensor(self, rank, stored):
        """In double precision if it is a floating tensor."""
        dtype = dtype_of(stored["dtype"])
        count = torch.Size(stored["sizes"]).numel()
        if count == 0:
            return torch.empty(stored["sizes"], dtype=dtype)
        values = bytearray(self._ranks[rank].values[stored["offset"] : stored["offset"] + count * dtype.itemsize])
        tensor = torch.frombuffer(values, dtype=dtype).view(stored["sizes"])
        return tensor.double() if tensor.is_floating_point() else tensor
