"""A process group with every collective of ProcessGroupGloo, whose calls a derived class starts.

Python code finds the methods by attribute, and C++ code (DDP's reducer, functional collectives) by torch's trampolines. A
call returns at once; outputs are valid after `wait()` of its work.
"""

import warnings

import torch
import torch.distributed as dist

from simranks import collectives
from simranks.tensors import TORCH_VERSION
from simranks.work import HAS_HOLDER

_SUM = dist.ReduceOp.SUM
_SUM_KIND, AVERAGE = 0, 1  # c10d::ReduceOp::SUM, AVG
_kernels = []


class Options:
    """As those of ProcessGroupGloo, whose fields torch sets after the construction."""

    def __init__(self, timeout):
        self._timeout, self.backend, self.global_ranks_in_group, self.group_name = timeout, "gloo", [], ""


def _kind_of(op):
    """The number of a ReduceOp, c10d::ReduceOp::RedOpType."""
    return 0 if op == _SUM else int(op.op if isinstance(op, dist.ReduceOp) else op)


def _check_average(op, kind):
    collectives.check(
        kind != AVERAGE or TORCH_VERSION > (2, 6),
        lambda: f"{op}: Gloo of torch 2.6 and before has no ReduceOp.AVG; use SUM, and divide",
    )


def _check_complex(op, tensors):
    collectives.check(
        TORCH_VERSION > (2, 8) or not any(tensor.is_complex() for tensor in tensors),
        lambda: f"{op}: Gloo of torch 2.8 and before has no complex numbers; use torch.view_as_real(tensor)",
    )


def _is_async(options):
    return getattr(options, "asyncOp", True)


def _list(tensors):
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _joined(lists):
    return [tensor for tensors in lists for tensor in tensors]


class GlooGroup(dist.ProcessGroup):
    """Reads and checks the arguments of a call, and starts it by `_start`. `kind`: of the reduction; `results`: lists of
    tensors; `splits`: of the input and of the output; `sizes`: of a sparse tensor, whose parts are the inputs."""

    Options = Options

    def _start(self, op, inputs, outputs=(), results=(), kind=0, root=-1, tag=0, is_async=True, splits=((), ()), sizes=()):
        raise NotImplementedError

    def _reduce_sparse(self, tensor, kind, is_async):
        raise NotImplementedError

    def _report_ignored_reduction(self, op, kind):
        """Called where real Gloo adds, whatever the ReduceOp: the reduce_scatter of torch 2.8 and before."""

    def __init__(self, store, rank, size, timeout=None, **_):
        super().__init__(rank, size)
        self._rank, self._size, self._options = rank, size, Options(timeout)
        self._name, self._description = "", "undefined"
        self._sequence = 0

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

    def _members(self, num_ranks):
        """The group's name in a world of so many ranks, and its ranks, of the world."""
        name = self._options.group_name or self._name
        ranks = list(self._options.global_ranks_in_group) or list(dist.distributed_c10d._world.pg_group_ranks.get(self, ()))
        # The name of the default group in PyTorch is a number.
        is_world = self._size == num_ranks and name in ("", "0")
        return "world" if is_world else name, ranks or list(range(self._size))

    def _has_hooks(self):
        return False

    def _verify_work_timeout(self, *_):
        return True

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
        if kind != _SUM_KIND and TORCH_VERSION <= (2, 8):
            self._report_ignored_reduction("reduce_scatter", kind)
        collectives.check(len(inputs) == 1, lambda: f"reduce_scatter: got {len(inputs)} input lists; expected one")
        collectives.check_count(op, "inputs", len(inputs[0]), self._size)
        collectives.check_same(op, outputs[0], inputs[0][self._rank])
        return self._start(op, list(inputs[0]), outputs, [outputs], kind, is_async=_is_async(opts))

    def reduce_scatter_tensor_coalesced(self, outputs, inputs, opts=None, timeout=None):
        outputs, inputs, kind = _list(outputs), _list(inputs), _kind_of(opts.reduceOp) if opts is not None else 0
        _check_complex("reduce_scatter_tensor", outputs)
        if kind != _SUM_KIND and TORCH_VERSION <= (2, 8):
            self._report_ignored_reduction("reduce_scatter_tensor", kind)
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


def install_kernels():
    """What C++ code calls through the dispatcher only, since torch's trampoline lacks it up to 2.13."""
    library = torch.library.Library("c10d", "IMPL")
    _kernels.append(library)  # removed with its object

    def allgather_base(output, input, group, *_):
        group = dist.ProcessGroup.unbox(group)
        if not isinstance(group, GlooGroup):  # its own method would call this kernel again
            group = group._get_backend(torch.device("cpu"))
            return output, group._allgather_base(output, input).boxed()
        work = group._allgather_base(output, input)
        boxed = work.boxed()
        if HAS_HOLDER:
            work.keep_until_finished()  # boxed, the C++ half outlives the Python half
        return output, boxed

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the kernel of torch is replaced on purpose
        library.impl("_allgather_base_", allgather_base, "CPU")
