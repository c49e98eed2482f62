"""Each collective with each dtype and reduction. Every rank prints what it receives, or "error"."""

import sys

import torch
import torch.distributed as dist
from reductions import all_reduce, reduce, reduce_scatter, reduce_scatter_tensor, values

DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64", "bool", "complex64",
          "complex128", "float8_e4m3fn", "float8_e5m2", "uint16")
REDUCTIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
TORCH = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
GIVES_ONLY_SUMS = TORCH <= (2, 8)  # Gloo's reduce_scatter


def broadcast(rank, ranks, dtype):
    tensor = values(rank, 4, dtype)
    dist.broadcast(tensor, 1)
    return [tensor]


def all_gather(rank, ranks, dtype):
    outputs = [values(rank, 4, dtype) for _ in range(ranks)]
    dist.all_gather(outputs, values(rank, 4, dtype))
    return outputs


def all_gather_into_tensor(rank, ranks, dtype):
    output = values(rank, 4 * ranks, dtype)
    dist.all_gather_into_tensor(output, values(rank, 4, dtype))
    return [output]


def gather(rank, ranks, dtype):
    outputs = [values(rank, 4, dtype) for _ in range(ranks)] if rank == 0 else None
    dist.gather(values(rank, 4, dtype), outputs)
    return outputs or []


def scatter(rank, ranks, dtype):
    output = values(rank, 4, dtype)
    dist.scatter(output, [values(rank, 4, dtype) for _ in range(ranks)] if rank == 0 else None)
    return [output]


def all_to_all_single(rank, ranks, dtype):
    output = values(rank, 2 * ranks, dtype)
    dist.all_to_all_single(output, values(rank, 2 * ranks, dtype))
    return [output]


def all_to_all(rank, ranks, dtype):
    outputs = [values(rank, 2, dtype) for _ in range(ranks)]
    dist.all_to_all(outputs, [values(rank, 2, dtype) for _ in range(ranks)])
    return outputs


def message(rank, ranks, dtype):
    tensor = values(rank, 3, dtype)
    if rank == 0:
        dist.send(tensor, 1)
    elif rank == 1:
        dist.recv(tensor, 0)
    return [tensor]


def all_reduce_coalesced(rank, ranks, dtype):
    tensors = [values(rank, 4, dtype), values(rank, 2, dtype)]
    dist.all_reduce_coalesced(tensors)
    return tensors


def numbers(tensor):
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64).tolist()


def main():
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    cases = [(call, dtype, (name,)) for call in (all_reduce, reduce, reduce_scatter, reduce_scatter_tensor)
             for dtype in DTYPES for name in REDUCTIONS if name == "SUM" or not (GIVES_ONLY_SUMS and "scatter" in call.__name__)]
    cases += [(call, dtype, ()) for call in (broadcast, all_gather, all_gather_into_tensor, gather, scatter,
                                             all_to_all_single, all_to_all, message, all_reduce_coalesced) for dtype in DTYPES]
    for call, name, operations in cases:
        dtype = getattr(torch, name)
        try:
            if operations:
                result = numbers(call(rank, ranks, 4, dtype, getattr(dist.ReduceOp, operations[0])))
            else:
                result = [numbers(tensor) for tensor in call(rank, ranks, dtype)]
        except (RuntimeError, ValueError):
            result = "error"
        words = [str(rank), call.__name__, name, *operations, repr(result).replace(" ", "")]
        sys.stdout.write(f"result {' '.join(words)}\n")
    sys.stdout.flush()
    dist.barrier()


main()
