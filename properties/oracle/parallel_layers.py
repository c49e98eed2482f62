"""The divided layers of a gpt under torch.distributed.tensor.parallel; parallel_layer_answers.cpp is the same in C++.

A rank of a group (rank_group.py). Items are {"layer": "attention" or "feed_forward", "options": those of gpt.py, "dtype", "batch", "length",
"sequence_parallel", "seed"}. Answers have SHA-256 hashes of the rank's tensors: its output, the gradient of its input, and the gradients of
its parts of the weights. Everything must be equal to the bit.
"""
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, parallelize_module

import gpt
import rank_group
from models import digest, digests

RANKS = (2, 4)
ROWWISE = ("o_proj", "projection", "down_proj")


def answer(request):
    ranks, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    options = gpt.Options(layers=1, block_size=request["length"], bias=False, **request["options"])
    kind = {"dtype": getattr(torch, request["dtype"])}
    torch.manual_seed(request["seed"])
    layer = (gpt.RotaryAttention if request["layer"] == "attention" else gpt.make_feed_forward)(options).to(**kind)
    torch.manual_seed(request["seed"])
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, **kind) * 0.3)
    shape = (request["batch"], request["length"], options.width)
    values, factors = torch.randn(shape, **kind), torch.randn(shape, **kind)
    rotation = [torch.randn(1, request["length"], options.head_width, **kind) for _ in range(2)]
    outside = Replicate()
    if request["sequence_parallel"]:
        outside = Shard(1)
        values, factors = (tensor.chunk(ranks, 1)[rank].clone() for tensor in (values, factors))
    divide(layer, ranks, outside)
    values.requires_grad_()
    output = layer(values, rotation) if request["layer"] == "attention" else layer(values)
    (output * factors).sum().backward()
    gradients = {name: parameter.grad.to_local() for name, parameter in layer.named_parameters()}
    return {"output": digest(output + 0), "input_gradient": digest(values.grad + 0), "gradients": digests(gradients.items())}


def divide(layer, ranks, outside):
    """All column-parallel layers read one distributed tensor, so that its gradients are summed before the all-reduce."""
    plan = {name: RowwiseParallel(output_layouts=outside) if name in ROWWISE else ColwiseParallel() for name, part in layer.named_children() if name != "dropout"}
    mesh = init_device_mesh("cpu", (ranks,))
    parallelize_module(layer, mesh, plan)
    layouts = {"input_layouts": (outside,), "desired_input_layouts": (Replicate(),)}
    if isinstance(layer, gpt.RotaryAttention):
        layouts = {name: (*layout, None) for name, layout in layouts.items()}
    parallelize_module(layer, mesh, PrepareModuleInput(**layouts))


def random_request(rng, ranks):
    heads_of_rank = rng.choice([1, 2, 4])
    options = {
        "heads": ranks * heads_of_rank,
        "head_width": rng.choice([2, 8, 16]),
        "key_value_heads": ranks * rng.choice([count for count in range(1, heads_of_rank + 1) if heads_of_rank % count == 0]),
        "width": rng.choice([3, 8, 32, 65]),
        "feed_forward_width": ranks * rng.choice([1, 5, 16, 64]),
        "feed_forward": rng.choice(["gelu", "swiglu"]),
    }
    return {
        "layer": rng.choice(["attention", "feed_forward"]),
        "options": options,
        "dtype": rng.choice(["float32", "float64"]),
        "batch": rng.randint(1, 3),
        "length": ranks * rng.choice([1, 2, 5, 16]),
        "sequence_parallel": rng.random() < 0.5,
        "seed": rng.randrange(1 << 31),
    }


def difference(their, our):
    """Both: per rank, its answer."""
    for rank, (expected, found) in enumerate(zip(their, our, strict=True)):
        wrong = [key for key in expected if found.get(key) != expected[key]]
        if wrong:
            return f"rank {rank}: {wrong}"
    return None


if __name__ == "__main__":
    rank_group.serve(answer)
