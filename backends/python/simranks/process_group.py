"""A process group whose rank is a process of a simulated run: every collective of ProcessGroupGloo, carried to the rank's
proxy in the simulator. CPU tensors.

Python code finds the methods by attribute, and C++ code (DDP's reducer, functional collectives) by torch's trampolines. A
call returns at once; outputs are valid after `wait()` of its work. A call with asyncOp false returns when it has ended.
"""

import torch
import torch.distributed as dist

from simranks import channel, collectives, pending_works
from simranks.tensors import TORCH_VERSION, add_words
from simranks.work import Several, Work

_SUM = dist.ReduceOp.SUM
_AVERAGE = 1  # c10d::ReduceOp::AVG
_LACKS_ALL_TO_ALL = TORCH_VERSION < (2, 13)  # of lists, in Gloo


class Options:
    """As those of ProcessGroupGloo, whose fields torch sets after the construction."""

    def __init__(self, timeout):
        self._timeout, self.backend, self.global_ranks_in_group, self.group_name = timeout, "gloo", [], ""


def _kind_of(op):
    """The number of a ReduceOp, c10d::ReduceOp::RedOpType."""
    return 0 if op == _SUM else int(op.op if isinstance(op, dist.ReduceOp) else op)


def _check_average(op, kind):
    collectives.check(
        kind != _AVERAGE or TORCH_VERSION > (2, 6),
        lambda: f"{op}: Gloo of torch 2.6 and before has no ReduceOp.AVG; use SUM, and divide",
    )


def _check_complex(op, tensors):
    collectives.check(
        TORCH_VERSION > (2, 8) or not any(tensor.is_complex() for tensor in tensors),
        lambda: f"{op}: Gloo of torch 2.8 and before has no complex numbers; use torch.view_as_real(tensor)",
    )


def _report_ignored_reduction(op, kind):
    if kind != 0 and TORCH_VERSION <= (2, 8):
        channel.report(
            "backend_faults",
            f"{op}: real Gloo of torch {'.'.join(map(str, TORCH_VERSION))} adds, whatever the ReduceOp; simulated ranks return "
            f"what the program asks for: {'an average, by which FSDP2 divides its gradients' if kind == _AVERAGE else 'not a sum'}",
        )


def _is_async(options):
    return getattr(options, "asyncOp", True)


def _list(tensors):
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _joined(lists):
    return [tensor for tensors in lists for tensor in tensors]


class SimProcessGroup(dist.ProcessGroup):
    Options = Options

    def __init__(self, store, rank, size, timeout=None, **_):
        super().__init__(rank, size)
        self._rank, self._size, self._options = rank, size, Options(timeout)
        self._name, self._description = "", "undefined"
        self._number = 0  # 0: unknown to the simulator
        self._sequence = 0
        self._batch = None  # works of a coalescing manager

    # --- what torch asks a group --------------------------------------------------------------------------------------

    def getBackendName(self):
        return "sim"  # DDP's logger takes a group called gloo for a ProcessGroupGloo

    def name(self):
        return "gloo"

    _get_backend_name = name

    def rank(self):
        return self._rank

    def size(self):
        return self._size

    getRank, getSize = rank, size

    def getGroupName(self):
        return self._name

    def setGroupName(self, name):
        self._name = name

    def getGroupDesc(self):
        return self._description

    def setGroupDesc(self, description):
        self._description = description

    _set_group_name, _set_group_desc = setGroupName, setGroupDesc
    group_name = property(getGroupName, setGroupName)
    group_desc = property(getGroupDesc, setGroupDesc)

    @property
    def options(self):
        return self._options

    @property
    def bound_device_id(self):
        return None

    @bound_device_id.setter
    def bound_device_id(self, device):
        pass

    @property
    def _device_types(self):
        return [torch.device("cpu")]

    supports_splitting = supports_coalescing = False

    def _get_backend(self, device):
        return self

    get_backend = _get_backend

    def _set_default_timeout(self, timeout):
        self._options._timeout = timeout

    set_timeout = _set_default_timeout

    def _get_sequence_number_for_group(self):
        return self._sequence

    def _nothing(self, *_):
        pass

    _add_ephemeral_timeout = _set_sequence_number_for_group = _wait_for_pending_works = _nothing
    _enable_collectives_timing = shutdown = abort = eager_connect_single_device = _nothing

    def _has_hooks(self):
        return False

    def _verify_work_timeout(self, *_):
        return True

    # --- a call -------------------------------------------------------------------------------------------------------

    def _report(self):
        """Reports the group to the simulator before its first call. Returns its number."""
        name = self._options.group_name or self._name
        ranks = list(self._options.global_ranks_in_group) or list(dist.distributed_c10d._world.pg_group_ranks.get(self, ()))
        # The name of the default group in PyTorch is a number.
        is_world = self._size == channel.num_ranks() and name in ("", "0")
        self._number = channel.group("world" if is_world else name, ranks or list(range(self._size)))
        return self._number

    def _start(self, op, inputs, outputs=(), results=(), kind=0, root=-1, tag=0, is_async=True, splits=((), ()), sizes=()):
        """Posts a call. `kind`: of the reduction; `results`: lists of tensors; `splits`: of the input and of the output."""
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
        if kind == _AVERAGE and inputs[0].is_complex():
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

    # --- collectives --------------------------------------------------------------------------------------------------

    def allreduce(self, tensors, opts=None, op=None, timeout=None):
        if isinstance(tensors, torch.Tensor):
            tensors = [tensors]
        reduction = getattr(opts, "reduceOp", op if opts is None else opts)
        kind = 0 if reduction is None else _kind_of(reduction)
        if len(tensors) != 1:
            collectives.check_one(collectives.ALL_REDUCE, tensors)
        _check_average("all_reduce", kind)
        is_async = getattr(opts, "asyncOp", True)
        if tensors[0].is_sparse:
            collectives.check_sums(collectives.ALL_REDUCE, tensors, kind == 0)
            return self._reduce_sparse(tensors[0], kind, is_async)
        return self._start(collectives.ALL_REDUCE, tensors, (), [tensors], kind, -1, 0, is_async)

    allreduce_sparse = allreduce

    def allreduce_coalesced(self, tensors, opts=None):
        tensors, kind = _list(tensors), _kind_of(opts.reduceOp) if opts is not None else 0
        collectives.check_sums(collectives.ALL_REDUCE_COALESCED, tensors, kind == 0)
        return self._start(collectives.ALL_REDUCE_COALESCED, tensors, results=[tensors], kind=kind, is_async=_is_async(opts))

    def broadcast(self, tensors, opts=None, root=0, timeout=None):
        tensors = _list(tensors)
        root = getattr(opts, "rootRank", root if opts is None else opts)
        collectives.check_one(collectives.BROADCAST, tensors)
        collectives.check_root(collectives.BROADCAST, root, self._size)
        _check_complex("broadcast", tensors)
        return self._start(collectives.BROADCAST, tensors, results=[tensors], root=root, is_async=_is_async(opts))

    def reduce(self, tensors, opts=None, root=0, op=_SUM, timeout=None):
        tensors = _list(tensors)
        root, op = getattr(opts, "rootRank", root if opts is None else opts), getattr(opts, "reduceOp", op)
        collectives.check_one(collectives.REDUCE, tensors)
        collectives.check_root(collectives.REDUCE, root, self._size)
        _check_average("reduce", _kind_of(op))
        _check_complex("reduce", tensors)
        return self._start(collectives.REDUCE, tensors, results=[tensors], kind=_kind_of(op), root=root,
                           is_async=_is_async(opts))

    def allgather(self, outputs, inputs, opts=None, timeout=None):
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        collectives.check_one(collectives.ALL_GATHER, inputs)
        collectives.check_list(collectives.ALL_GATHER, "output", outputs, inputs[0], self._size)
        received = list(outputs[0])
        return self._start(collectives.ALL_GATHER, inputs, received, [received], is_async=_is_async(opts))

    def _gather_parts(self, op, outputs, inputs, opts):
        outputs, inputs = _list(outputs), _list(inputs)
        collectives.check_all_parts(op, outputs, inputs, self._size)
        return self._start(op, inputs, outputs, [outputs], is_async=_is_async(opts))

    def _allgather_base(self, output, input, opts=None, timeout=None):
        return self._gather_parts(collectives.ALL_GATHER_INTO_TENSOR, output, input, opts)

    def allgather_into_tensor_coalesced(self, outputs, inputs, opts=None):
        return self._gather_parts(collectives.ALL_GATHER_INTO_TENSOR_COALESCED, outputs, inputs, opts)

    def allgather_coalesced(self, outputs, inputs, opts=None):
        op, inputs = collectives.ALL_GATHER_COALESCED, _list(inputs)
        collectives.check_count(op, "output lists", len(outputs), self._size)
        for tensors in outputs:
            collectives.check_count(op, "outputs of a rank", len(tensors), len(inputs))
            for output, like in zip(tensors, inputs):
                collectives.check_same(op, output, like)
        lists = [list(tensors) for tensors in outputs]
        return self._start(op, inputs, _joined(lists), lists, is_async=_is_async(opts))

    def gather(self, outputs, inputs, opts=None, root=0, timeout=None):
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs] if outputs else [], [inputs]
        op, root = collectives.GATHER, getattr(opts, "rootRank", root if opts is None else opts)
        collectives.check_one(op, inputs)
        collectives.check_root(op, root, self._size)
        collectives.check_list_of_root(op, "output", outputs, inputs[0], self._size, self._rank, root)
        received = _joined(outputs)
        return self._start(op, inputs, received, [received] if received else [], root=root, is_async=_is_async(opts))

    def gather_single(self, output, input, opts=None):
        """The parts of the root's output, along dimension 0."""
        outputs = [list(output.chunk(self._size))] if opts.rootRank == self._rank else []
        return self.gather([[part.view(input.shape) for part in parts] for parts in outputs], [input], opts)

    def scatter(self, outputs, inputs, opts=None, root=0, timeout=None):
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs] if inputs else []
        op, root = collectives.SCATTER, getattr(opts, "rootRank", root if opts is None else opts)
        collectives.check_one(op, outputs)
        collectives.check_root(op, root, self._size)
        collectives.check_list_of_root(op, "input", inputs, outputs[0], self._size, self._rank, root)
        return self._start(op, _joined(inputs), outputs, [outputs], root=root, is_async=_is_async(opts))

    def reduce_scatter(self, outputs, inputs, opts=None, op=_SUM, timeout=None):
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        kind = _kind_of(getattr(opts, "reduceOp", op if opts is None else opts))
        op = collectives.REDUCE_SCATTER
        collectives.check(
            TORCH_VERSION > (2, 6),
            lambda: "reduce_scatter: Gloo of torch 2.6 and before has none of lists; use reduce_scatter_tensor",
        )
        collectives.check_one(op, outputs)
        _check_complex("reduce_scatter", outputs)
        _report_ignored_reduction("reduce_scatter", kind)
        collectives.check(len(inputs) == 1, lambda: f"reduce_scatter: got {len(inputs)} input lists; expected one")
        collectives.check_count(op, "inputs", len(inputs[0]), self._size)
        collectives.check_same(op, outputs[0], inputs[0][self._rank])
        return self._start(op, list(inputs[0]), outputs, [outputs], kind, is_async=_is_async(opts))

    def reduce_scatter_tensor_coalesced(self, outputs, inputs, opts=None, timeout=None):
        outputs, inputs, kind = _list(outputs), _list(inputs), _kind_of(opts.reduceOp) if opts is not None else 0
        _check_complex("reduce_scatter_tensor", outputs)
        _report_ignored_reduction("reduce_scatter_tensor", kind)
        collectives.check_all_parts(collectives.REDUCE_SCATTER_TENSOR, inputs, outputs, self._size)
        return self._start(collectives.REDUCE_SCATTER_TENSOR, inputs, outputs, [outputs], kind, is_async=_is_async(opts))

    _reduce_scatter_base = reduce_scatter_tensor_coalesced

    def alltoall_base(self, output, input, output_splits, input_splits, opts=None, timeout=None):
        output_splits, input_splits = list(output_splits), list(input_splits)
        collectives.check_splits(input, input_splits, "input", self._size)
        collectives.check_splits(output, output_splits, "output", self._size)
        collectives.check(
            input.dtype == output.dtype,
            lambda: f"all_to_all_single: got an input of {collectives.dtype_name(input.dtype)} and an output of "
            f"{collectives.dtype_name(output.dtype)}; expected one dtype",
        )
        return self._start(collectives.ALL_TO_ALL_SINGLE, [input], [output], [[output]], is_async=_is_async(opts),
                           splits=(input_splits, output_splits))

    def alltoall(self, outputs, inputs, opts=None, timeout=None):
        outputs, inputs = list(outputs), list(inputs)
        collectives.check_count(collectives.ALL_TO_ALL, "inputs", len(inputs), self._size)
        collectives.check_count(collectives.ALL_TO_ALL, "outputs", len(outputs), self._size)
        collectives.check_one_dtype(collectives.ALL_TO_ALL, inputs + outputs)
        return self._start(collectives.ALL_TO_ALL, inputs, outputs, [outputs], is_async=_is_async(opts))

    def barrier(self, opts=None, timeout=None, **_):
        return self._start(collectives.BARRIER, (), is_async=_is_async(opts))

    def monitored_barrier(self, timeout=None, wait_all_ranks=False):
        self._start(collectives.MONITORED_BARRIER, (), is_async=False).wait()

    def send(self, tensors, dst, tag=0):
        tensors = _list(tensors)
        collectives.check_one(collectives.SEND, tensors)
        collectives.check_peer(collectives.SEND, dst, self._rank, self._size)
        return self._start(collectives.SEND, tensors, root=dst, tag=tag)

    def recv(self, tensors, src, tag=0):
        tensors = _list(tensors)
        collectives.check_peer(collectives.RECV, src, self._rank, self._size)
        collectives.check_one(collectives.RECV, tensors)
        return self._start(collectives.RECV, (), tensors, [tensors], root=src, tag=tag)

    def recv_anysource(self, tensors, tag=0):
        tensors = _list(tensors)
        collectives.check_one(collectives.RECV_ANY_SOURCE, tensors)
        return self._start(collectives.RECV_ANY_SOURCE, (), tensors, [tensors], tag=tag)

    # Names that torch 2.13 and later use.
    all_gather_single, reduce_scatter_single, all_to_all_single = _allgather_base, _reduce_scatter_base, alltoall_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    gather_into_tensor = gather_single

    # --- coalescing manager: every call is a work, and the end returns one for all ------------------------------------

    def _start_coalescing(self, device=None):
        self._batch = []

    def _end_coalescing(self, device=None):
        work, works = Several(), self._batch or []
        self._batch = None
        work.begin_all(works)
        return work
