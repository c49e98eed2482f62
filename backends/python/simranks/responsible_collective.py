"""Finds the collective that explains a wrong tensor of a run on a mesh. All tensors that a rank computed before the wrong one are
right, so the suspects are the collectives since then."""

import math

from simranks.both_runs import GRADIENTS, is_inside


class CollectiveSearch:
    def __init__(self, run, mesh):
        self._run, self._mesh = run, mesh

    def responsible(self, key, rank, cause):
        """The last collective of the step with the cause's elements; else the last one over its groups, before the tensor; else
        the last one since the first tensor inside the module, or since the backward pass for gradients."""
        if key.kind in ("prepared parameter", "input") or (key.kind == "parameter" and not cause.kinds):
            return ""
        calls = self.calls_since_backward(rank, key) if key.kind in GRADIENTS else self.calls_of_step(rank, key)
        fitting = [call for call in calls if call["elements"] == cause.elements and len(call["ranks"]) > 1]
        if fitting:
            return self._shown(fitting[-1])
        calls = self._calls_until(rank, key)
        near = calls[self._begin_of(rank, key):]
        recent, all_calls = ([call for of_observation in some for call in of_observation] for some in (near, calls))
        elements = self._elements(key, rank)
        for kinds, some in ((cause.kinds, recent), (cause.kinds, all_calls), (None, recent)):
            fitting = [call for call in some if kinds is None or self._mesh.kind_of(call["ranks"]) in kinds]
            same_size = [call for call in fitting if call["elements"] == elements]
            if fitting:
                return self._shown((same_size or fitting)[-1])
        return ""

    def _elements(self, key, rank):
        """Of a gradient, whose collective is found by its size."""
        seen = self._run.find(rank, key)
        if key.kind not in GRADIENTS or seen is None or not seen.tensors:
            return -1
        return math.prod(seen.tensors[0]["sizes"])

    def _calls_until(self, rank, key):
        calls = []
        for other in self._run.keys(rank):
            calls.append(self._calls(rank, other))
            if other == key:
                break
        return calls

    def _calls(self, rank, key):
        """Those that exchange something."""
        return [call for call in self._run.find(rank, key).calls if len(call["ranks"]) > 1]

    def calls_since_backward(self, rank, key):
        return [call for some in self._calls_until(rank, key)[self._begin_of(rank, key):] for call in some]

    def calls_of_step(self, rank, key):
        """Since the update before, also those of groups of one rank."""
        keys = self._run.keys(rank)
        keys = keys[: keys.index(key) + 1] if key in keys else keys
        updates = [place for place, other in enumerate(keys) if other.kind in ("parameter", "prepared parameter")]
        # What a program calls before its model is called for the first time belongs to the first prepared parameter.
        begin = updates[-1] + 1 if updates and keys[updates[-1]].kind == "parameter" else 0
        return [call for other in keys[begin:] for call in self._run.find(rank, other).calls]

    def _begin_of(self, rank, key):
        keys = self._run.keys(rank)
        if key not in keys:
            return 0
        place = keys.index(key)
        first = place
        if key.kind in (*GRADIENTS, "parameter"):
            while first > 0 and keys[first - 1].kind != "loss":
                first -= 1
            return first
        while first > 0 and keys[first - 1].kind == key.kind and is_inside(keys[first - 1], key):
            first -= 1
        return first

    def _shown(self, call):
        return f"{call['name']} #{call['number']} of group {self._mesh.kind_of(call['ranks'])} ({call['at']})"
