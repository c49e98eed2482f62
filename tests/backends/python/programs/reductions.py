"""The bits of every reduction of Gloo: hashes of what each rank receives, for inputs that have the same bits on every machine."""

import hashlib

import torch
import torch.distributed as dist

SIZES = (1, 5, 64, 1000, 100_003)
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64)
REDUCTIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX")


def values(rank, size, dtype):
    """Numbers near 1 whose sums and products round."""
    steps = (torch.arange(size, dtype=torch.int64) * 2654435761 + rank * 40503 + 12345) % 65521
    is_whole = not (dtype.is_floating_point or dtype.is_complex)
    return (steps % 7 if is_whole else (steps.double() / 65521 + 0.5)).to(dtype)


def all_reduce(rank, ranks, size, dtype, op):
    tensor = values(rank, size, dtype)
    dist.all_reduce(tensor, op)
    return tensor


def reduce(rank, ranks, size, dtype, op):
    tensor = values(rank, size, dtype)
    dist.reduce(tensor, ranks - 1, op)
    return tensor if rank == ranks - 1 else tensor[:0]  # elsewhere it holds partial sums


def reduce_scatter(rank, ranks, size, dtype, op):
    parts, output = [values(rank * ranks + part, size, dtype) for part in range(ranks)], torch.empty(size, dtype=dtype)
    dist.reduce_scatter(output, parts, op)
    return output


def reduce_scatter_tensor(rank, ranks, size, dtype, op):
    output = torch.empty(size, dtype=dtype)
    dist.reduce_scatter_tensor(output, values(rank, size * ranks, dtype), op)
    return output


def main():
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for call in (all_reduce, reduce, reduce_scatter, reduce_scatter_tensor):
        for name in REDUCTIONS:
            for dtype in DTYPES:
                digest = hashlib.sha256()
                try:
                    for size in SIZES:
                        result = call(rank, ranks, size, dtype, getattr(dist.ReduceOp, name))
                        digest.update(result.contiguous().view(torch.uint8).numpy().tobytes())
                    bits = digest.hexdigest()
                except (RuntimeError, ValueError):
                    bits = "error"
                every = [None] * ranks
                dist.all_gather_object(every, bits)
                if rank == 0:
                    of_ranks = "error" if "error" in every else hashlib.sha256("".join(every).encode()).hexdigest()[:12]
                    print("bits", ranks, call.__name__, name, str(dtype).removeprefix("torch."), of_ranks, flush=True)
    dist.barrier()


if __name__ == "__main__":
    main()
