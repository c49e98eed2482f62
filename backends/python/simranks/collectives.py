"""The collectives of a process group, and the checks of a rank's arguments. A check raises RuntimeError before any rank
waits, so that every rank raises alike; the message begins with the name of the collective. The texts are those of
reference/comm/collective_args.cpp and collective_backend.cpp, which C++ programs get."""

from simranks.tensors import describe_dtype, describe_sizes, dtype_name


class Collective:
    """`number`: as accel::Collective. `kind`: as c10d::opTypeToString names it. `is_in_place`: the result overwrites the
    inputs; `root_only_reads`: not those of the root."""

    def __init__(self, number, name, kind, is_in_place=False, root_only_reads=False):
        self.number, self.name, self.kind = number, name, kind
        self.is_in_place, self.root_only_reads = is_in_place, root_only_reads


ALL_REDUCE = Collective(0, "all_reduce", "ALLREDUCE", is_in_place=True)
ALL_REDUCE_SPARSE = Collective(0, "all_reduce", "_ALLREDUCE_SPARSE", is_in_place=True)
ALL_REDUCE_COALESCED = Collective(1, "all_reduce_coalesced", "ALLREDUCE_COALESCED", is_in_place=True)
BROADCAST = Collective(2, "broadcast", "BROADCAST", is_in_place=True, root_only_reads=True)
REDUCE = Collective(3, "reduce", "REDUCE", is_in_place=True)
ALL_GATHER = Collective(4, "all_gather", "ALLGATHER")
ALL_GATHER_INTO_TENSOR = Collective(5, "all_gather_into_tensor", "_ALLGATHER_BASE")
ALL_GATHER_COALESCED = Collective(6, "all_gather_coalesced", "ALLGATHER_COALESCED")
ALL_GATHER_INTO_TENSOR_COALESCED = Collective(7, "all_gather_into_tensor_coalesced", "COALESCED")
GATHER = Collective(8, "gather", "GATHER")
SCATTER = Collective(9, "scatter", "SCATTER")
REDUCE_SCATTER = Collective(10, "reduce_scatter", "REDUCE_SCATTER")
REDUCE_SCATTER_TENSOR = Collective(11, "reduce_scatter_tensor", "_REDUCE_SCATTER_BASE")
ALL_TO_ALL = Collective(12, "all_to_all", "ALLTOALL")
ALL_TO_ALL_SINGLE = Collective(13, "all_to_all_single", "ALLTOALL_BASE")
BARRIER = Collective(14, "barrier", "BARRIER")
MONITORED_BARRIER = Collective(15, "monitored_barrier", "BARRIER")
SEND = Collective(16, "send", "SEND")
RECV = Collective(17, "recv", "RECV")
RECV_ANY_SOURCE = Collective(17, "recv", "RECVANYSOURCE")


def check(condition, problem):
    """`problem`: a function that returns the text."""
    if not condition:
        raise RuntimeError(problem())


def check_one(op, tensors):
    check(len(tensors) == 1, lambda: f"{op.name}: got {len(tensors)} tensors; expected one per rank")


def check_count(op, what, given, expected):
    check(given == expected, lambda: f"{op.name} {what}: got {given} tensors; expected {expected}, one per rank")


def check_same(op, tensor, like):
    """Shapes are compared exactly, as in ProcessGroupGloo; equal numbers of elements are not enough."""
    check(
        tensor.dtype == like.dtype and tensor.shape == like.shape,
        lambda: f"{op.name}: got a tensor of {describe_sizes(tensor)} {describe_dtype(tensor.dtype)}; expected "
        f"{describe_sizes(like)} {describe_dtype(like.dtype)} as for the others",
    )


def check_root(op, root, num_ranks):
    check(
        0 <= root < num_ranks,
        lambda: f"{op.name}: root {root} is not in the group of {num_ranks} ranks; expected 0 or more and less than "
        f"{num_ranks}",
    )


def check_peer(op, peer, rank, num_ranks):
    check(
        0 <= peer < num_ranks,
        lambda: f"{op.name}: rank {peer} is not in the group; expected 0 <= rank < {num_ranks}",
    )
    check(
        peer != rank,
        lambda: f"{op.name}: rank {rank} is the caller itself, which Gloo does not support; copy the tensor instead",
    )


def check_all_parts(op, complete, parts, count):
    """Each complete tensor has the elements of `count` parts, and their dtype."""
    check(
        len(complete) == len(parts) and len(parts) > 0,
        lambda: f"{op.name}: got {len(parts)} tensors for the parts of {len(complete)}; expected one per tensor, at "
        f"least one",
    )
    for tensor, part in zip(complete, parts):
        check(
            tensor.numel() == part.numel() * count and tensor.dtype == part.dtype,
            lambda: f"{op.name}: got {tensor.numel()} elements of {describe_dtype(tensor.dtype)} on one side and "
            f"{part.numel()} of {describe_dtype(part.dtype)} on the other; expected {count} times as many elements, of one "
            f"dtype",
        )


def check_sums(op, tensors, is_sum):
    check(len(tensors) > 0, lambda: f"{op.name}: got no tensors; expected at least one")
    check(
        is_sum or not tensors[0].is_sparse,
        lambda: "all_reduce: sparse tensors support only the sum; use op sum or a dense tensor",
    )
    if len(tensors) > 1:
        check_one_dtype(op, tensors)


def check_one_dtype(op, tensors):
    for tensor in tensors:
        check(
            tensor.dtype == tensors[0].dtype,
            lambda: f"{op.name}: got tensors of {dtype_name(tensors[0].dtype)} and {dtype_name(tensor.dtype)}; expected one "
            f"dtype",
        )


def check_list(op, what, lists, like, num_ranks):
    """One list with a tensor per rank."""
    check(len(lists) == 1, lambda: f"{op.name}: got {len(lists)} {what} lists; expected one")
    check_tensors_of_list(op, what, lists[0], like, num_ranks)


def check_list_of_root(op, what, lists, like, num_ranks, rank, root):
    """The same on the root; no list elsewhere."""
    if rank != root:
        check(
            len(lists) == 0,
            lambda: f"{op.name}: got {what}s on rank {rank}; expected them only on the root, rank {root}",
        )
        return
    check(len(lists) == 1, lambda: f"{op.name}: got {len(lists)} {what} lists on the root; expected one")
    check_tensors_of_list(op, what, lists[0], like, num_ranks)


def check_tensors_of_list(op, what, tensors, like, num_ranks):
    check_count(op, what + "s", len(tensors), num_ranks)
    for tensor in tensors:
        check_same(op, tensor, like)


def check_splits(tensor, splits, side, num_ranks):
    check(tensor.dim() > 0, lambda: f"all_to_all_single: the {side} has no dimension 0 to split")
    rows = tensor.shape[0]
    if not splits:
        check(
            rows % num_ranks == 0,
            lambda: f"all_to_all_single: {rows} rows of {side} are not divisible by {num_ranks} ranks; pass split sizes",
        )
        return
    check(
        len(splits) == num_ranks and sum(splits) == rows,
        lambda: f"all_to_all_single: got {len(splits)} splits of {side} with sum {sum(splits)}; expected {num_ranks} with "
        f"sum {rows}",
    )
