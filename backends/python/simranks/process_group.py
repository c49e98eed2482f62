"""A process group whose rank is a process of a simulated run: carries every collective to the rank's proxy in the simulator.
CPU tensors. A call with asyncOp false returns when it has ended."""

import torch

from simranks import channel, collectives, pending_works
from simranks.gloo_group import AVERAGE, GlooGroup
from simranks.tensors import TORCH_VERSION, add_words
from simranks.work import Several, Work

_LACKS_ALL_TO_ALL = TORCH_VERSION < (2, 12)  # of lists, in Gloo


class SimProcessGroup(GlooGroup):
    def __init__(self, store, rank, size, timeout=None, **_):
        super().__init__(store, rank, size, timeout)
        self._number = 0  # 0: unknown to the simulator
        self._batch = None  # works of a coalescing manager

    def _report(self):
        """Reports the group to the simulator before its first call. Returns its number."""
        self._number = channel.group(*self._members(channel.num_ranks()))
        return self._number

    def _report_ignored_reduction(self, op, kind):
        channel.report(
            "backend_faults",
            f"{op}: real Gloo of torch {'.'.join(map(str, TORCH_VERSION))} adds, whatever the ReduceOp; simulated ranks return "
            f"what the program asks for: {'an average, by which FSDP2 divides its gradients' if kind == AVERAGE else 'not a sum'}",
        )

    def _start(self, op, inputs, outputs=(), results=(), kind=0, root=-1, tag=0, is_async=True, splits=((), ()), sizes=()):
        at = channel.line(2)
        writes_inputs = op.is_in_place and not (op.root_only_reads and root == self._rank) and not sizes
        is_missing = _LACKS_ALL_TO_ALL and op is collectives.ALL_TO_ALL
        flags = is_async | bool(sizes) << 1 | writes_inputs << 2 | is_missing << 3
        words = [op.number, self._number or self._report(), kind, root, tag, flags, len(inputs), len(outputs), len(sizes),
                 len(splits[0]), len(splits[1])]
        for tensor in inputs:
            add_words(words, tensor)
        for tensor in outputs:
            add_words(words, tensor)
        if sizes or splits[0] or splits[1]:
            words += [*sizes, *splits[0], *splits[1]]
        memory, may_change = None, False
        if is_async or pending_works.any_pending():
            memory = pending_works.used_memory(inputs, writes_inputs)
            if outputs:
                memory += pending_works.used_memory(outputs, True)
            if sizes:
                memory += pending_works.used_memory(results[0], True)
            may_change = pending_works.check(memory, op.kind)
        self._sequence += 1
        work = Work()
        if kind == AVERAGE and inputs[0].is_complex():
            work.divide_result([*(inputs if writes_inputs else ()), *outputs], self._size)
        if not is_async and not sizes:  # torch allows such a call to block, and less code runs than for two calls
            source = channel.run(words, at)
            work.end(source, results)
            return work
        number = channel.call(words, at)
        work.begin(number, op.kind, None if is_async else at, [*inputs, *outputs], results)
        if is_async:
            pending_works.add(number, memory)
            if may_change:
                channel.allow_changes(number)
        if self._batch is not None:
            self._batch.append(work)
        return work

    def _reduce_sparse(self, tensor, kind, is_async):
        """Only the parts of a sparse tensor are exchanged; the work fetches the sum."""
        with torch.no_grad(), pending_works.unwatched():
            total = tensor.detach().coalesce()
            parts = [total.indices(), total.values()]
        return self._start(collectives.ALL_REDUCE_SPARSE, parts, results=[[tensor]], kind=kind, is_async=is_async,
                           sizes=tuple(total.shape))

    # --- coalescing manager: every call is a work, and the end returns one for all ------------------------------------

    def _start_coalescing(self, device=None):
        self._batch = []

    def _end_coalescing(self, device=None):
        work, works = Several(), self._batch or []
        self._batch = None
        work.begin_all(works)
        return work
