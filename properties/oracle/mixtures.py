"""Mixtures of experts: transformers' Mixtral, whose experts are not divided; mixture_values.cpp is the same in C++ on ranks that divide them.

A request has the sizes "width", "inner", "num_experts", "top_k" and "num_tokens", and flat lists of float32: "parameters" with our names and
layouts, "values" (tokens, width), and "factors", by which the outputs are multiplied in the loss. The loss includes the balancing loss. An answer
has flat lists too: "values", "auxiliary_loss", "values_gradient", and "gradients" of all parameters.
"""
import torch
from transformers import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock, load_balancing_loss_func

RANKS = (1, 2, 3, 4)
# Relative to 1 and to the largest number of a tensor: both sides compute in float32, in another order, and the difference of two large numbers has
# the absolute error of the large numbers.
TOLERANCE = 5e-6


def numbers(tensor):
    return tensor.detach().flatten().tolist()


def random_request(rng, num_experts):
    """Some ranks may have no tokens, and some experts no rows. At least two experts per token, because Mixtral normalizes gates."""
    width, inner = rng.randint(1, 8), rng.randint(1, 8)
    num_tokens = rng.choice([1, 2, 5, 12])
    generator = torch.Generator().manual_seed(rng.randrange(1 << 31))

    def draw(*sizes):
        return numbers(torch.randn(*sizes, generator=generator))

    layers = {"experts.up_proj": (width, inner), "experts.gate_proj": (width, inner), "experts.down_proj": (inner, width)}
    parameters = {"router.weight": draw(num_experts, width)} | {name: draw(num_experts, *sizes) for name, sizes in layers.items()}
    sizes = {"width": width, "inner": inner, "num_experts": num_experts, "top_k": rng.randint(2, min(num_experts, 4)), "num_tokens": num_tokens}
    return sizes | {"parameters": parameters, "values": draw(num_tokens, width), "factors": draw(num_tokens, width)}


def random_requests(rng, ranks, count):
    return [random_request(rng, max(2, ranks * rng.randint(1, 3))) for _ in range(count)]


def answer(request):
    width, inner, num_experts, top_k = (request[key] for key in ("width", "inner", "num_experts", "top_k"))
    config = MixtralConfig(hidden_size=width, intermediate_size=inner, num_local_experts=num_experts, num_experts_per_tok=top_k, num_attention_heads=1, num_key_value_heads=1)
    config._experts_implementation = "eager"
    block = MixtralSparseMoeBlock(config)
    ours = {name: torch.tensor(flat) for name, flat in request["parameters"].items()}
    up, gate = (ours[f"experts.{name}"].view(num_experts, width, inner) for name in ("up_proj", "gate_proj"))
    with torch.no_grad():
        block.gate.weight.copy_(ours["router.weight"].view(num_experts, width))
        block.experts.gate_up_proj.copy_(torch.cat([gate, up], 2).transpose(1, 2))
        block.experts.down_proj.copy_(ours["experts.down_proj"].view(num_experts, inner, width).transpose(1, 2))
    values = torch.tensor(request["values"]).view(1, -1, width).requires_grad_()
    outputs = block(values)
    logits, _, _ = block.gate(values)
    auxiliary_loss = load_balancing_loss_func((logits,), num_experts, top_k) / top_k  # theirs is top_k if choices are balanced
    ((outputs.flatten() * torch.tensor(request["factors"])).sum() + auxiliary_loss).backward()
    of_gate, of_up = block.experts.gate_up_proj.grad.transpose(1, 2).chunk(2, dim=2)
    gradients = {"router.weight": block.gate.weight.grad, "experts.up_proj": of_up, "experts.gate_proj": of_gate,
                 "experts.down_proj": block.experts.down_proj.grad.transpose(1, 2)}
    return {"values": numbers(outputs), "auxiliary_loss": numbers(auxiliary_loss), "values_gradient": numbers(values.grad),
            "gradients": {name: numbers(gradient) for name, gradient in gradients.items()}}


def first_difference(what, their, our):
    if len(their) != len(our):
        return f"{what}: {len(their)} and {len(our)} numbers"
    allowed = TOLERANCE * (1 + max(map(abs, their), default=0))
    for index, (one, other) in enumerate(zip(their, our)):
        if not abs(one - other) <= allowed:
            return f"{what}[{index}]: {one} and {other}"
    return None


def difference(their, of_ranks):
    """The first difference between an answer and those of all ranks; None if there is none."""
    found = [first_difference(key, their[key], sum((our[key] for our in of_ranks), [])) for key in ("values", "values_gradient")]
    for rank, our in enumerate(of_ranks):
        found.append(first_difference(f"auxiliary_loss of rank {rank}", their["auxiliary_loss"], our["auxiliary_loss"]))
        found += [first_difference(f"gradient of {name} on rank {rank}", flat, our["gradients"][name]) for name, flat in their["gradients"].items()]
    return next((text for text in found if text), None)
