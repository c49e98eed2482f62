"""A run on a mesh beside one on a single rank, as `prove` compares them: their tensors, and by what these differ."""

import math
from dataclasses import dataclass, field

import torch

from simranks.layout_parts import LayoutParts
from simranks.recorded_run import Key
from simranks.tensors import dtype_of

TOLERANCES = {"Double": 1e-9, "Float": 1e-4}  # relative to the largest element, by dtype
OTHER_TOLERANCE = 0.05
GRADIENTS = ("gradient", "stepped gradient")


@dataclass
class Cause:
    text: str = ""
    kinds: list = field(default_factory=list)  # of groups, over one of which something is wrong
    missing: str = ""  # the collective that is missing
    elements: int = -1  # of the collective that is wrong; -1: unknown


class Different(Exception):
    def __init__(self, key, rank, cause, error=0.0, is_absent=False):
        super().__init__()
        self.key, self.rank, self.cause, self.error, self.is_absent = key, rank, cause, error, is_absent


def _tolerance_of(name):
    dtype = dtype_of(name)
    return TOLERANCES.get(name, OTHER_TOLERANCE) if dtype.is_floating_point else 0.0


def what(key):
    """The tensor in words."""
    name = key.name.split(": ")[-1]
    of_module = f"of module {name}" if name else "of the model"
    return {"input": f"the input {of_module}", "output": f"the output {of_module}",
            "input gradient": f"the gradient of the input {of_module}"}.get(key.kind, f"the {key.kind} of {name}")


def _real(tensor):
    return torch.view_as_real(tensor.to(torch.complex128)) if tensor.is_complex() else tensor.double()


def largest(tensor):
    """Of the finite elements."""
    tensor = _real(tensor)
    finite = tensor[tensor.isfinite()]
    return finite.abs().max().item() if finite.numel() else 0.0


def difference(a, b):
    """Infinite if they have other sizes, or infinities and NaN elsewhere."""
    if a.shape != b.shape:
        return math.inf
    a, b = _real(a), _real(b)
    finite = a.isfinite()
    if not torch.equal(finite, b.isfinite()) or not torch.equal(a[~finite].nan_to_num(), b[~finite].nan_to_num()):
        return math.inf
    return largest(a[finite] - b[finite])


def relative(own, expected):
    """By how much a number is wrong; 0 if that has no meaning."""
    return abs(own - expected) / abs(expected) if expected else 0.0


def is_close(a, b):
    return difference(a, b) <= 1e-4 * max(largest(b), 1e-30)


def factor_of(own, expected):
    """By which all elements differ; None if they differ otherwise."""
    if own.shape != expected.shape or not expected.is_floating_point():
        return None
    square = (expected * expected).sum().item()
    if square == 0:
        return None
    factor = (own * expected).sum().item() / square
    return factor if abs(factor - 1) > 1e-6 and is_close(own, expected * factor) else None


def is_inside(inner, outer):
    """Whether a module is inside another one, in the same step."""
    return inner.step == outer.step and inner.name.startswith(outer.name + ".")


def kinds_of_size(mesh, count):
    return [kind for kind in mesh.kinds if abs(mesh.size(kind) - count) < 1e-6 * count]


def factor_cause(mesh, factor, name="it"):
    """No text if the factor is 1."""
    if not math.isfinite(factor) or factor <= 0 or abs(factor - 1) < 1e-6:
        return Cause()
    if kinds := kinds_of_size(mesh, factor):
        return Cause(f"{name} is {factor:.6g} times the expected value: reduced or counted once too often over "
                     f"{' or '.join(kinds)}", kinds)
    if kinds := kinds_of_size(mesh, 1 / factor):
        return Cause(f"{name} is 1/{1 / factor:.6g} of the expected value: a missing sum, or a division too many, over "
                     f"{' or '.join(kinds)}", kinds)
    return Cause(f"{name} is {factor:.6g} times the expected value")


class BothRuns:
    def __init__(self, one, run, mesh):
        self.one, self.run, self.mesh = one, run, mesh
        self.parts = LayoutParts(one, run, mesh)
        self.is_exact = any(key.kind == "exact" for key in one.keys(0))
        self._largest_gradients = {}  # by step and kind
        dtypes = {stored["dtype"] for key in one.keys(0) for stored in one.find(0, key).tensors}
        self._tolerance = 0.0 if self.is_exact else max(map(_tolerance_of, dtypes), default=0.0)  # of the lowest precision
        for key in one.keys(0):
            self._note_largest(key)

    def whole(self, key, index=0):
        """The tensor of one rank."""
        return self.one.tensor(0, self.one.find(0, key).tensors[index])

    def tolerance(self, key, index=0):
        dtype = dtype_of(self.one.find(0, key).tensors[index]["dtype"])
        return self._tolerance if dtype.is_floating_point or dtype.is_complex else 0.0

    def seen(self, rank, key, index=0):
        seen = self.run.find(rank, key)
        if seen is None or len(seen.tensors) <= index:
            raise Different(key, rank, Cause("the rank never computed it"), is_absent=True)
        return seen.tensors[index]

    def total(self, rank, key, index, depth=0):
        """A rank's tensor: the sum over those of the ranks that hold parts of it."""
        stored = self.seen(rank, key, index)
        sums = stored.get("sums", [])
        if depth == len(sums):
            return self.run.tensor(rank, stored)
        return sum(self.total(member, key, index, depth + 1) for member in sums[depth])

    def is_unknown(self, key, index):
        seen = (self.run.find(rank, key) for rank in self.ranks())
        return any(own is not None and len(own.tensors) > index and own.tensors[index].get("unknown") for own in seen)

    def ranks(self):
        return range(self.run.num_ranks)

    def _note_largest(self, key):
        if key.kind in ("input gradient", *GRADIENTS):
            for stored in self.one.find(0, key).tensors:
                known = self._largest_gradients.get((key.step, key.kind), 0.0)
                self._largest_gradients[key.step, key.kind] = max(known, largest(self.one.tensor(0, stored)))

    def largest_gradient(self, key):
        return self._largest_gradients.get((key.step, key.kind), 0.0)

    def factors(self, key):
        """By which a gradient differs on each rank; None: otherwise. Without ranks whose part is too small to tell."""
        whole, factors = self.whole(key), {}
        for rank in self.ranks():
            if self.run.find(rank, key) is None or not self.parts.has_parameter(key.name, rank):
                continue
            own, expected = self.total(rank, key, 0), self.parts.own_parameter(key.name, rank, whole)
            if largest(expected) >= 1e-6 * self.largest_gradient(key):
                factors[rank] = 1.0 if is_close(own, expected) else factor_of(own, expected)
        return factors

    def clipping(self, key):
        """The factor by which one rank has changed its gradients after the backward pass."""
        local = self.one.find(0, Key(key.step, "local gradient", key.name, 0))
        if local is None:
            return None
        local, stepped = self.one.tensor(0, local.tensors[0]), self.whole(key)
        return 1.0 if is_close(stepped, local) else factor_of(stepped, local)

    def local_gradients(self, key, own):
        found = {}
        for rank in own:
            seen = None
            for step in range(key.step, -1, -1):
                seen = seen or self.run.find(rank, Key(step, "local gradient", key.name, 0))
            if seen is None or seen.tensors[0]["sizes"] != list(own[rank].shape):
                return None
            found[rank] = self.run.tensor(rank, seen.tensors[0])
        return found

    def value_before(self, key, rank):
        for step in range(key.step - 1, -1, -1):
            seen = self.run.find(rank, Key(step, "parameter", key.name, 0))
            if seen is not None:
                return self.run.tensor(rank, seen.tensors[0])
        seen = self.run.find(rank, Key(0, "prepared parameter", key.name, 0))
        return None if seen is None else self.run.tensor(rank, seen.tensors[0])

    def num_shares(self):
        """Of the samples and positions of a step."""
        return len({self.samples_of(rank) for rank in self.ranks()})

    def samples_of(self, rank):
        batch = self.parts.batch(rank)
        if batch is None:
            return None
        return tuple(None if index is None else tuple(index.tolist()) for index in (batch.rows, batch.positions))
