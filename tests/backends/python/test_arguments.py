"""Wrong arguments raise on the rank before it waits, with the texts that C++ programs get."""

import pytest
from conftest import TORCH, simulate_text

NO_GPU = (
    "simulated ranks have no GPUs, but the program uses a device cuda; use device='cpu', as on a machine without GPUs, or "
    "`sim-run --map-cuda`"
)
CALLS = [
    ("dist.broadcast(a, 5)", None),  # torch's own
    ("group.broadcast([a], root=5)",
     "broadcast: root 5 is not in the group of 2 ranks; expected 0 or more and less than 2"),
    ("group.allreduce([a, a])", "all_reduce: got 2 tensors; expected one per rank"),
    ("group.allreduce_coalesced([])", "all_reduce_coalesced: got no tensors; expected at least one"),
    ("group.allreduce_coalesced([a, a.double()])",
     "all_reduce_coalesced: got tensors of float32 and float64; expected one dtype"),
    ("dist.all_reduce(a.to_sparse(), dist.ReduceOp.MAX)",
     "all_reduce: sparse tensors support only the sum; use op sum or a dense tensor"),
    ("dist.broadcast(a.to_sparse(), 0)",
     "expected a dense tensor, got a Sparse one; only all_reduce accepts sparse tensors (COO), as with Gloo; call "
     "tensor.to_dense()"),
    ("dist.all_reduce(a.to('meta'))", "a rank that is a process exchanges tensors of the CPU, got one on meta"),
    ("dist.all_gather([a], a)", "all_gather outputs: got 1 tensors; expected 2, one per rank"),
    ("dist.all_gather([a, torch.ones(2, 2)], a)",
     "all_gather: got a tensor of [2, 2] Float; expected [4] Float as for the others"),
    ("group._allgather_base(a, a)",
     "all_gather_into_tensor: got 4 elements of Float on one side and 4 of Float on the other; expected 2 times as many "
     "elements, of one dtype"),
    ("group.reduce_scatter([a], [[a]])",
     "reduce_scatter inputs: got 1 tensors; expected 2, one per rank" if TORCH > (2, 6) else
     "reduce_scatter: Gloo of torch 2.6 and before has none of lists; use reduce_scatter_tensor"),
    ("group.gather([], [a], root=rank)", "gather: got 0 output lists on the root; expected one"),
    ("group.scatter([a], [[a, a]], root=1 - rank)",
     "scatter: got inputs on rank 0; expected them only on the root, rank 1"),
    ("group.alltoall_base(a, torch.ones(3), [], [])",
     "all_to_all_single: 3 rows of input are not divisible by 2 ranks; pass split sizes"),
    ("group.alltoall_base(a, a, [4], [2, 2])",
     "all_to_all_single: got 1 splits of output with sum 4; expected 2 with sum 4"),
    ("group.alltoall_base(a, torch.tensor(1.0), [], [])", "all_to_all_single: the input has no dimension 0 to split"),
    ("group.send([a], 7)", "send: rank 7 is not in the group; expected 0 <= rank < 2"),
    ("dist.isend(a, rank)", "send: rank 0 is the caller itself, which Gloo does not support; copy the tensor instead"),
    ("dist.irecv(a, rank)", "recv: rank 0 is the caller itself, which Gloo does not support; copy the tensor instead"),
    ("dist.all_to_all([a, b], [a, b])",
     "all_to_all: got tensors of shapes [4] and [3]; Gloo expects one shape; use all_to_all_single, with split sizes for parts "
     "of different sizes" if TORCH >= (2, 12) else
     "all_to_all: Gloo has it from torch 2.12 on; use all_to_all_single, with split sizes for parts of different sizes"),
    ("dist.all_to_all([a], [a, a])", "all_to_all outputs: got 1 tensors; expected 2, one per rank"),
    ("dist.new_group(backend='nccl')",
     "simulated ranks rehearse Gloo on CPUs, got backend 'nccl'; use backend='gloo', or `sim-run --map-cuda`"),
    ("a.cuda()", NO_GPU),
    ("a.to('cuda:1')", NO_GPU),
    ("torch.ones(1, device='cuda')", NO_GPU),
    ("torch.cuda.set_device(0)", NO_GPU),
]


def test_texts(tmp_path):
    calls = "".join(
        f"try: {call}; print('no error in {index}')\n"
        f"except Exception as error: print('error', {index}, str(error), flush=True)\n"
        for index, (call, _) in enumerate(CALLS)
    )
    run = simulate_text(
        tmp_path, 2,
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "rank, group, a, b = dist.get_rank(), dist.group.WORLD, torch.ones(4), torch.ones(3)\n" + calls,
    )
    assert run.code == 0, run.error
    lines = [line for line in run.output.splitlines() if line.startswith("[rank 0] ")]
    for index, (call, text) in enumerate(CALLS):
        found = next(line for line in lines if line.startswith(f"[rank 0] error {index} "))
        assert text is None or found == f"[rank 0] error {index} {text}", (call, found)


@pytest.mark.parametrize("backend", ("mpi", "nccl", "cpu:gloo,cuda:nccl"))
def test_a_backend_that_is_not_rehearsed(tmp_path, backend):
    run = simulate_text(tmp_path, 2, f"import torch.distributed as dist\ndist.init_process_group({backend!r})\n")
    text = f"ranks 0-1: RuntimeError: simulated ranks rehearse Gloo on CPUs, got backend '{backend}'; use backend='gloo'"
    assert run.code == 1 and text in run.error, run.error
