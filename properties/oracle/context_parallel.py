"""Attention over a divided sequence under torch.distributed.tensor.experimental; context_parallel_answers.cpp is the same in C++.

A rank of a group (rank_group.py): items are {"seed", "batch", "heads", "length", "width", "is_causal", "scale", "rotation", "function"},
answers {"positions", "output", "queries", "keys", "values"}: the rank's positions, and as lists of numbers its output and gradients.

context_parallel() refuses tensors on the CPU only because it does not name their kernel. The functions below it, which divide
sequences, rotate keys and merge blocks, are called with that kernel here.
"""
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental._context_parallel import _attention
from torch.distributed.tensor.experimental._context_parallel._load_balancer import _create_default_load_balancer

import rank_group

RANKS = (2, 4)
FUNCTIONS = ("all_gather_attention", "ring_attention", "ulysses_attention")
BOUND = 1e-12  # blocks are summed in other orders; values are of the order of 1


def random_request(rng, ranks):
    return {
        "seed": rng.randrange(1000),
        "batch": rng.randrange(1, 4),
        "heads": ranks * rng.randrange(1, 3),
        "length": 2 * ranks * rng.randrange(1, 20),
        "width": rng.choice([1, 3, 4, 8, 16]),
        "is_causal": rng.random() < 0.7,
        "scale": rng.choice([0.3, 1.0]),
        "rotation": rng.choice(["allgather", "alltoall"]),
        "function": rng.choice(FUNCTIONS),
    }


class RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(context, queries, keys, values, options):
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        output, log_sums = _attention._templated_ring_attention(dist.group.WORLD, 2, kernel, queries, keys, values, **options)
        context.save_for_backward(queries, keys, values, output, log_sums)
        context.options = options
        return output

    @staticmethod
    def backward(context, gradient):
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        gradients = _attention._templated_ring_attention_backward(
            dist.group.WORLD, 2, kernel, gradient.contiguous(), "grad_out", *context.saved_tensors, dropout_p=0.0, **context.options
        )
        return *gradients, None


def answer(request):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    _attention._cp_options.convert_to_f32 = False
    _attention._cp_options.enable_load_balance = request["is_causal"]
    _attention.set_rotate_method(request["rotation"])
    generator = torch.Generator().manual_seed(request["seed"])
    sizes = [request[name] for name in ("batch", "heads", "length", "width")]
    drawn = [torch.randn(sizes, generator=generator, dtype=torch.float64) for _ in range(4)]
    balancer = _create_default_load_balancer(request["length"], mesh.size(), "cpu") if request["is_causal"] else None
    positions, *parts = _attention._context_parallel_buffers(mesh, [torch.arange(request["length"]), *drawn], [0, 2, 2, 2, 2], balancer)
    *inputs, gradient = [part.contiguous() for part in parts]
    for values in inputs:
        values.requires_grad_()
    output = RingAttention.apply(*inputs, {"is_causal": request["is_causal"], "scale": request["scale"]})
    output.backward(gradient)
    found = dict(zip(("output", "queries", "keys", "values"), [output, *(values.grad for values in inputs)]))
    return {"positions": positions.tolist()} | {name: values.flatten().tolist() for name, values in found.items()}


def difference(theirs, ours):
    """Both: per rank, its answer."""
    for rank, (left, right) in enumerate(zip(theirs, ours, strict=True)):
        if left["positions"] != right["positions"]:
            return f"rank {rank}: positions are {left['positions']} and {right['positions']}"
        for name in ("output", "queries", "keys", "values"):
            worst = max(abs(a - b) for a, b in zip(left[name], right[name], strict=True))
            if not worst <= BOUND:
                return f"rank {rank}, {name}: numbers differ by up to {worst}"
    return None


if __name__ == "__main__":
    rank_group.serve(answer)
