"""Compares a run on a mesh with a run of the same program on one rank, tensor by tensor, for `sim-run prove`:

    python -m simranks.proof FOLDER_OF_ONE FOLDER_OF_MESH REQUEST

REQUEST is JSON: {"ranks": 4, "groups": {"tp": [[0, 1], [2, 3]], ...}}. Prints one JSON object: the first tensor, in the order in
which one rank computes them, that a rank of the mesh has with other values than it should, or null; and what was not compared.

A loss may be a mean over the rank's samples, or their part of the sum. Gradients of what modules are called with are larger
in the first case, by the number of ranks with other samples.
"""

import json
import math
import sys
from dataclasses import dataclass

import torch

from simranks.both_runs import (
    GRADIENTS, BothRuns, Cause, Different, difference, factor_cause, factor_of, is_close, kinds_of_size, largest, relative, what)
from simranks.gradient_causes import GradientCauses
from simranks.layout_parts import Mesh
from simranks.recorded_run import Key, RecordedRun
from simranks.responsible_collective import CollectiveSearch

IGNORED = ("variable", "exact", "local gradient", "generator state")


@dataclass
class _Pending:
    """A tensor with other values than expected, as a right program may have it inside: parts of a sum before their reduction, or
    rows that travel to the rank of their expert. If the next tensor is wrong, this one is the reason."""

    key: Key
    cause: Cause


class Proof:
    def __init__(self, runs):
        self._runs, self._collectives = runs, CollectiveSearch(runs.run, runs.mesh)
        self._causes = GradientCauses(runs, self._collectives)
        self._scales = {}  # by step: of the gradients of what modules are called with
        self._sums = {}  # by step: the loss, if the ranks' losses are parts of a sum
        self._stepped = set()  # steps whose stepped gradients are compared
        self._moved_by_rounding = {}  # by parameter: 1 where its gradient was rounding
        self._last_step = math.inf  # that can be compared
        self._pending = None  # the last tensor that is right only if the next one is
        self.not_compared = []

    def first_disagreement(self):
        """None if there is none."""
        try:
            self._compare()
        except Different as found:
            return self._describe(self._loss_that_explains(found) or found)
        return None

    def _loss_that_explains(self, found):
        """Losses that are parts of a sum are right only if gradients are summed."""
        key, factor = self._sums.get(found.key.step, (None, 1))
        if key is None or found.key.kind not in GRADIENTS or not self._is_too_small(found.key, factor):
            return None
        own = [self._runs.total(rank, key, 0).item() for rank in self._runs.ranks()]
        mean, whole = sum(own) / len(own), self._runs.whole(key).item()
        return Different(key, 0, self._cause_of_loss(key, mean, whole, own), relative(mean, whole))

    def _is_too_small(self, key, factor):
        """Whether a gradient is the average where the sum is expected, and not clipped as it is too small for that."""
        factor *= self._runs.clipping(key) or 1.0
        return all(own is not None and abs(own * factor - 1) < 1e-6 for own in self._runs.factors(key).values())

    def _compare(self):
        for key in self._runs.one.keys(0):
            if key.kind in IGNORED or key.step > self._last_step:
                continue
            if key.kind == "prepared parameter":
                self._compare_prepared(key)
            elif key.kind == "input":
                self._compare_inputs(key)
            elif key.kind == "loss":
                self._compare_loss(key)
            elif key.kind == "stepped gradient":
                self._compare_stepped(key)
            elif key.kind in ("gradient", "parameter"):
                self._compare_parameter(key)
            else:
                self._compare_values(key)

    def _compare_prepared(self, key):
        if not any(self._runs.run.find(rank, key) for rank in self._runs.ranks()):
            raise Different(key, 0, Cause("no rank holds it"), is_absent=True)
        problem = self._runs.parts.note_parameter(key)
        if problem is None:
            return
        rank, text = problem
        if rank is None:
            return self._skip(text)
        raise Different(key, rank, Cause(text or "the initial values are no part of those of one rank: another random stream, or "
                                                 "parts that are drawn per rank"))

    def _compare_inputs(self, key):
        for rank in self._runs.ranks():
            if self._runs.one.find(0, key).tensors:
                self._runs.seen(rank, key)
        problem = self._runs.parts.note_batch(key)
        if problem is not None:
            raise Different(key, problem[0], Cause(problem[1]))
        if "dp" in self._runs.parts.kinds_of_one_batch and not self._runs.parts.has_equal_samples:
            self._skip("the ranks of dp have the same samples: the program does not divide them")
        self._compare_values(key)

    def _compare_values(self, key):
        for index, stored in enumerate(self._runs.one.find(0, key).tensors):
            if not self._runs.is_unknown(key, index):
                self._compare_tensor(key, index, self._runs.one.tensor(0, stored))

    def _compare_tensor(self, key, index, whole):
        holders = [rank for rank in self._runs.ranks() if self._runs.run.find(rank, key)]
        if not holders:
            self._runs.seen(0, key)
        own = {rank: self._runs.total(rank, key, index) for rank in holders}
        if whole.dim() == 0:
            return self._compare_number(key, whole, list(own.values()))
        if key.kind == "input gradient":
            if self._runs.parts.has_equal_samples:
                return self._skip(f"step {key.step}: gradients of inputs are not compared, as samples with equal inputs may have "
                                  "other targets")
            whole = whole * self._scales.get(key.step, 1)
        parts = self._runs.parts
        expected = {rank: list(parts.own_values(key.name, rank, whole, tensor.shape)) for rank, tensor in own.items()}
        limit = self._runs.tolerance(key, index) * max(largest(whole), self._runs.largest_gradient(key) * 1e-2)
        wrong = next((rank for rank in holders if not self._is_right(own[rank], expected[rank], limit)), None)
        if wrong is None:
            self._pending = None
        else:
            self._explain(key, wrong, whole, own, expected, limit)

    def _explain(self, key, wrong, whole, own, expected, limit):
        """A tensor that is not a part of that of one rank: it may be right inside of a module, or cannot be compared."""
        if key.kind != "input" and (cause := self._cause_of_pending(key, whole, own, expected, limit)) is not None:
            self._pending = self._pending or _Pending(key, cause)
            return
        if expected[wrong]:
            error = self._error(own[wrong], expected[wrong], whole)
            cause = self._cause_of_rounding(error) or self._cause_of_values(key, wrong, own, expected, whole)
            raise Different(key, wrong, cause, error)
        if key.kind == "input":
            raise Different(key, wrong, Cause(f"its sizes are {list(own[wrong].shape)}, those of one rank {list(whole.shape)}"))
        if self._exchanges_rows(key):
            raise Different(key, wrong, Cause("some of its rows are none that one rank computes: another expert, or lost rows"))
        self._skip(f"{what(key)} is not compared: its rows are neither samples nor positions")

    def _skip(self, text):
        if text not in self.not_compared:
            self.not_compared.append(text)

    @staticmethod
    def _is_right(own, expected, limit):
        return any(difference(own, option) <= limit for option in expected)

    @staticmethod
    def _error(own, expected, whole):
        error = min((difference(own, option) for option in expected), default=0.0)
        scale = max(largest(whole), max(map(largest, expected), default=0.0))
        return error / scale if scale > 0 and math.isfinite(error) else 0.0

    def _cause_of_pending(self, key, whole, own, expected, limit):
        """What is wrong if no later tensor is right; None if this one is wrong anyway."""
        if all(expected.values()) and (kind := self._kind_of_partial(own, expected, limit)) is not None:
            return Cause("it follows from parts of a sum", missing=f"a reduction over {kind} after {what(key)}")
        is_routed = self._exchanges_rows(key) or not all(expected.values())
        if is_routed and all(self._has_rows_of(tensor, whole, limit) for tensor in own.values()):
            return Cause(f"it follows from {what(key)}, whose rows are right but in another order: they are assigned to other "
                         "samples, or some are lost")
        return None

    def _exchanges_rows(self, key):
        """Whether rows have travelled to other ranks in this step, as to those of their experts."""
        calls = (self._collectives.calls_of_step(rank, key) for rank in self._runs.ranks())
        return all(any(call["name"].startswith("all_to_all") for call in own) for own in calls)

    def _kind_of_partial(self, own, expected, limit):
        """The kind of group over which the ranks' values add up to the expected ones: parts of a sum, as before a reduction."""
        for kind in self._runs.parts.kinds_of_one_batch:
            size = self._runs.mesh.size(kind)
            if all(self._is_right(self._sum(own, rank, kind), options, limit * size) for rank, options in expected.items()):
                return kind
        return None

    def _sum(self, own, rank, kind):
        tensors = [own[member] for member in self._runs.mesh.members(rank, kind) if member in own]
        return sum(tensor for tensor in tensors if tensor.shape == own[rank].shape)

    def _compare_number(self, key, whole, own):
        """Of a module: equal on all ranks, or a mean or part of a sum over samples."""
        limit = self._runs.tolerance(key) * max(abs(whole.item()), 1e-30)
        mean = sum(own) / len(own)
        if min(difference(mean, whole), difference(mean * self._runs.num_shares(), whole)) > limit:
            mean, whole = mean.item(), whole.item()
            cause = factor_cause(self._runs.mesh, mean / whole if whole else math.inf, "the mean of the ranks' values")
            raise Different(key, 0, cause, relative(mean, whole))

    def _compare_loss(self, key):
        stored = self._runs.one.find(0, key).tensors
        if not stored or self._runs.whole(key).numel() != 1:
            return
        whole = self._runs.whole(key).item()
        own = [self._runs.total(rank, key, 0).item() for rank in self._runs.ranks()]
        limit = self._runs.tolerance(key) * max(abs(whole), 1e-30)
        shares, mean = self._runs.num_shares(), sum(own) / len(own)
        # Parts of a sum over some ranks may be averaged over the others, as over context and data parallel ranks.
        for factor in sorted({1, shares, *(self._runs.mesh.size(kind) for kind in self._kinds_of_samples())}):
            if abs(mean * factor - whole) <= limit:
                self._scales[key.step] = shares / factor
                if factor > 1:
                    self._sums[key.step] = key, factor
                return
        for rank in self._runs.ranks():
            first = next(other for other in self._runs.ranks() if self._runs.samples_of(other) == self._runs.samples_of(rank))
            if abs(own[rank] - own[first]) > limit:
                raise Different(key, rank, Cause(f"rank {first} has another loss for the same samples",
                                                 [self._runs.mesh.kind_with(first, rank)]), relative(own[rank], own[first]))
        nearest = min((mean, mean * shares), key=lambda value: abs(value - whole))
        raise Different(key, 0, self._cause_of_loss(key, nearest, whole, own), relative(nearest, whole))

    def _kinds_of_samples(self):
        """Of groups whose ranks have different samples."""
        return [kind for kind in self._runs.mesh.kinds if kind not in self._runs.parts.kinds_of_one_batch]

    def _cause_of_loss(self, key, mean, whole, own):
        cause = factor_cause(self._runs.mesh, mean / whole if whole else math.inf, "the mean of the ranks' losses")
        if cause.kinds:
            return Cause(cause.text, cause.kinds, elements=1)
        text = f"the mean of the ranks' losses is {mean:.6g}, that of one rank {whole:.6g}"
        if not min(own) <= whole <= max(own):
            return Cause(f"{text}: other targets, or another weight")
        kinds = [kind for kind in kinds_of_size(self._runs.mesh, self._runs.num_shares()) if kind in self._kinds_of_samples()]
        counts = [call for call in self._collectives.calls_of_step(0, key) if call["elements"] == 1 and len(call["ranks"]) > 1]
        missing = f"an all-reduce of the numbers of samples or tokens over {kinds[0]}" if kinds and not counts else ""
        return Cause(f"{text}: each rank averages over its own samples or tokens, some count twice or not at all, or targets "
                     "differ", missing=missing, elements=1)

    def _compare_stepped(self, key):
        """All gradients of a step at once: where one is wrong, clipping by the wrong norm changes all the others."""
        if key.step in self._stepped:
            return
        self._stepped.add(key.step)
        keys = [other for other in self._runs.one.keys(0) if (other.step, other.kind) == (key.step, key.kind)]
        if not self._wrong_of(keys):
            return
        self._causes.note_step(keys)  # the causes follow from all gradients
        wrong = self._wrong_of(keys)
        raise next((found for found in wrong if not self._causes.is_changed_alike(found.key)), wrong[0])

    def _wrong_of(self, keys):
        wrong = []
        for key in keys:
            try:
                self._compare_parameter(key)
            except Different as found:
                wrong.append(found)
        return wrong

    def _compare_parameter(self, key):
        whole = self._runs.whole(key)
        tolerance = self._runs.tolerance(key)
        if key.kind in GRADIENTS:
            # Elements that are 0 but for rounding have other bits in every layout, and optimizers such as Adam enlarge them.
            rounding = (whole.abs() <= tolerance * 1e-2 * self._runs.largest_gradient(key)).double()
            known = self._moved_by_rounding.get(key.name)
            self._moved_by_rounding[key.name] = rounding if known is None else torch.maximum(known, rounding)
        held = [rank for rank in self._runs.ranks() if self._runs.parts.has_parameter(key.name, rank)]
        own = {rank: self._runs.total(rank, key, 0) for rank in held}
        expected = {rank: self._runs.parts.own_parameter(key.name, rank, whole) for rank in held}
        limit = tolerance * max(largest(whole), self._runs.largest_gradient(key) * 1e-2)
        for rank in held:
            if own[rank].shape != expected[rank].shape:
                sizes = list(own[rank].shape), list(expected[rank].shape)
                raise Different(key, rank, Cause(f"its sizes are {sizes[0]}, those of its part {sizes[1]}"))
            if difference(own[rank], expected[rank]) <= limit:
                continue
            if key.kind == "parameter" and self._is_moved_by_rounding(key.name, rank, own[rank], expected[rank], limit):
                self._last_step = key.step  # later steps compute with it
                self._skip(f"steps after {key.step} are not compared: gradients that are 0 but for rounding have moved "
                           f"{key.name}")
                continue
            error = self._error(own[rank], [expected[rank]], whole)
            raise Different(key, rank, self._cause_of_rounding(error) or self._causes.of(key, rank, own, expected), error)

    def _is_moved_by_rounding(self, name, rank, own, expected, limit):
        moved = self._moved_by_rounding.get(name)
        if moved is None:
            return False
        compared = 1 - self._runs.parts.own_parameter(name, rank, moved)
        return difference(own * compared, expected * compared) <= limit

    @staticmethod
    def _cause_of_rounding(error):
        return Cause("it differs by little: another order of operations, or another precision") if 0 < error < 1e-9 else None

    def _cause_of_values(self, key, rank, own, expected, whole):
        for option in expected[rank]:
            if (factor := factor_of(own[rank], option)) is not None and (cause := factor_cause(self._runs.mesh, factor)).text:
                return cause
        if cause := self._bias_cause(key, own[rank], expected[rank]):
            return cause
        if self._pending is not None and (self._pending.key.step, self._pending.key.kind) == (key.step, key.kind):
            return self._pending.cause
        for other in own:
            if other != rank and any(is_close(own[rank], option) for option in expected[other]):
                kind = self._runs.mesh.kind_with(rank, other)
                return Cause(f"it has the values of rank {other}: a wrong or stale part", [kind])
        if own[rank].numel() and self._has_rows_of(own[rank], whole, 0.0):
            return Cause("it has the values of other positions: a wrong order, or positions that are counted within a part")
        return Cause()

    def _bias_cause(self, key, own, expected):
        """A bias that every rank of a group adds before a sum."""
        for candidate in self._runs.one.keys(0):
            is_inside = candidate.name.startswith(key.name) and candidate.name.endswith("bias")
            if candidate.kind != "prepared parameter" or not is_inside or not expected:
                continue
            bias = self._runs.whole(candidate)
            for option in expected:
                if option.shape[-1:] != bias.shape:
                    continue
                for kind in self._runs.mesh.kinds:
                    size = self._runs.mesh.size(kind)
                    if is_close(own, option + bias * (size - 1)):
                        return Cause(f"the bias {candidate.name} is added {size} times: once per rank of {kind}", [kind])
                if is_close(own, option - bias):
                    return Cause(f"the bias {candidate.name} is missing")
        return None

    @staticmethod
    def _has_rows_of(own, whole, limit):
        """Whether every row is one of the complete tensor."""
        if own.dim() < 2 or whole.dim() < 2 or whole.shape[-1] != own.shape[-1] or not own.is_floating_point():
            return False
        rows, known = own.flatten(0, -2), whole.flatten(0, -2)
        if own.numel() == 0 or len(rows) * len(known) > 1 << 22:
            return own.numel() == 0
        nearest = torch.cdist(rows, known, compute_mode="donot_use_mm_for_euclid_dist").min(1).values
        return largest(nearest) <= max(limit, 1e-6 * largest(whole))

    def _describe(self, found):
        key, cause = found.key, found.cause
        if self._pending is not None and key.kind in GRADIENTS and self._pending.key.kind == "input gradient" and not cause.text:
            cause = self._pending.cause
        collective = "" if cause.missing or found.is_absent else self._collectives.responsible(key, found.rank, cause)
        text = cause.text or "other values: another random stream, or another order of samples or positions"
        return {"step": key.step, "kind": key.kind, "name": key.name, "rank": found.rank, "cause": text, "collective": collective,
                "missing": cause.missing, "is_absent": found.is_absent, "error": found.error}


def main():
    one, run, request = sys.argv[1:]
    request = json.loads(request)
    torch.set_num_threads(1)
    mesh = Mesh(request["groups"], request["ranks"])
    proof = Proof(BothRuns(RecordedRun(one, 1), RecordedRun(run, request["ranks"]), mesh))
    found = proof.first_disagreement()
    print(json.dumps({"disagreement": found, "not_compared": proof.not_compared}))


if __name__ == "__main__":
    main()
