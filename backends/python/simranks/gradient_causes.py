"""Why a parameter or its gradient is wrong, as far as the values of all ranks show."""

import collections

from simranks.both_runs import Cause, difference, factor_cause, factor_of, is_close, kinds_of_size, what
from simranks.recorded_run import Key


class GradientCauses:
    def __init__(self, runs, search):
        self._runs, self._mesh, self._collectives = runs, runs.mesh, search
        self._changes = {}  # by step: the factor of most stepped gradients, by rank

    def of(self, key, rank, own, expected):
        if key.kind == "parameter":
            before = self._runs.value_before(key, rank)
            if before is not None and difference(own[rank], before) == 0:
                return Cause("the update did not change it: no optimizer has it, or it is a copy")
            return Cause("its gradient was right: another learning rate, optimizer state, or change after the gradients")
        after_backward = Key(key.step, "gradient", key.name, key.count)
        if key.kind == "stepped gradient" and self._runs.one.find(0, after_backward) is not None:
            return Cause("it was right before clipping: another norm, or another change", elements=1)
        change = self._changes.get(key.step, {}).get(rank, 1.0)
        is_average = kinds_of_size(self._mesh, change) or kinds_of_size(self._mesh, 1 / change)
        if change != 1.0 and not is_average and self.is_changed_alike(key):
            unclipped = 1 / (self._runs.clipping(key) or 1.0)
            return self._reduction_cause(key, rank, own, expected, unclipped) or self._cause_of_norm(key, rank, change)
        if cause := self._missing_reduction(key, rank, own, expected) or self._reduction_cause(key, rank, own, expected, change):
            return cause
        if (factor := factor_of(own[rank], expected[rank])) is not None and (cause := factor_cause(self._mesh, factor)).text:
            return cause
        for other in own:
            if other != rank and is_close(own[rank], expected[other]):
                kind = self._mesh.kind_with(rank, other)
                return Cause(f"it is that of the part of rank {other}: a wrong or stale part", [kind])
        return Cause()

    def note_step(self, keys):
        """`keys`: of all gradients of a step."""
        self._changes[keys[0].step] = self._common_factors(keys)

    def _common_factors(self, keys):
        """By which most gradients of a step differ, by rank: what clipping by a wrong norm does."""
        counts = [collections.Counter() for _ in self._runs.ranks()]
        for key in keys:
            for rank, factor in self._runs.factors(key).items():
                counts[rank][factor and float(f"{factor:.7g}")] += 1
        common = [count.most_common(1)[0][0] if count else None for count in counts]
        return {rank: factor if factor is not None and factor > 0 else 1.0 for rank, factor in enumerate(common)}

    def is_changed_alike(self, key):
        """Whether a gradient differs as most gradients of the step do."""
        changes = self._changes[key.step]
        return all(factor is not None and abs(factor - changes[rank]) <= 1e-5 * changes[rank]
                   for rank, factor in self._runs.factors(key).items())

    def _missing_reduction(self, key, rank, own, expected):
        """If the ranks' gradients add up to the expected one."""
        changes = self._changes.get(key.step, {})
        values = {other: gradient / changes.get(other, 1.0) for other, gradient in own.items()}
        for kind in self._mesh.kinds:
            members = self._mesh.members(rank, kind)
            if not all(member in values and values[member].shape == values[rank].shape for member in members):
                continue
            total = sum(values[member] for member in members)
            for text, reduced in (("add up to", total), ("have as their mean", total / len(members))):
                if is_close(reduced, expected[rank]):
                    return Cause(f"it is the rank's own part: those of {kind} {text} the expected one",
                                 missing=f"an all-reduce over {kind} of {what(key)}")
        return None

    def _cause_of_norm(self, key, rank, change):
        """Of gradients that are all changed alike."""
        text = f"all gradients are {change:.6g} times the expected ones: clipped by another norm"
        kinds = self._runs.parts.kinds_of_divided()
        if kinds and not any(call["elements"] == 1 for call in self._collectives.calls_since_backward(rank, key)):
            return Cause(text, missing=f"an all-reduce of the norm's square over {' and '.join(kinds)}")
        return Cause(text, elements=1)

    def _reduction_cause(self, key, rank, own, expected, change):
        """Over which group the gradient was reduced, and over which it should have been: found by the gradients that the
        ranks had after their backward passes."""
        local, clipped = self._runs.local_gradients(key, own), self._runs.clipping(key)
        if local is None or clipped is None:
            return None
        expected_by = self._reduction_of(local, expected[rank] / clipped, rank)
        if expected_by is None:
            return None
        done_by = self._reduction_of(local, own[rank] / (clipped * change), rank)
        if done_by == ("", ""):
            how, kind = expected_by
            return Cause(f"it is the rank's own gradient; the {how} over {kind} is the expected one",
                         missing=f"an all-reduce over {kind} of {what(key)}") if kind else None
        if done_by is None:
            return None
        should = f"the {expected_by[0]} over {expected_by[1]}" if expected_by[1] else "the rank's own gradient"
        return Cause(f"it is the {done_by[0]} over {done_by[1]} of the ranks' gradients; expected {should}", [done_by[1]])

    def _reduction_of(self, local, value, rank):
        """("", "") if it is the rank's own; None if no reduction gives it."""
        if is_close(local[rank], value):
            return "", ""
        for kind in self._mesh.kinds:
            members = self._mesh.members(rank, kind)
            if not all(member in local and local[member].shape == value.shape for member in members):
                continue
            total = sum(local[member] for member in members)
            for how, reduced in (("sum", total), ("average", total / len(members))):
                if is_close(reduced, value):
                    return how, kind
            for divisor in sorted({self._mesh.size(other) for other in self._mesh.kinds} - {len(members)}):
                if is_close(total / divisor, value):
                    return f"sum, divided by {divisor},", kind
        return None
