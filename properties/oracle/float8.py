"""Layers in float8, by torchao with Accelerate's recipe. Only trainings in float8 need torchao."""
from dataclasses import replace

import torch
from accelerate.utils import AORecipeKwargs


def recipe(options):
    """The `ao_recipe_kwargs` of an experiment file. Accelerate's default gathers in float8. If the model is not sharded by
    FSDP2, its weights then belong to no optimizer and never change."""
    options = {"enable_fsdp_float8_all_gather": False} | options
    if "config" in options:
        options["config"] = config(options["config"])
    return AORecipeKwargs(**options)


def config(fields):
    from torchao.float8 import Float8LinearConfig

    fields = dict(fields)
    return replace(Float8LinearConfig.from_recipe_name(fields.pop("recipe_name", "tensorwise")), **fields)


# --- one layer -------------------------------------------------------------------------------------------------------------

RECIPES = ({}, {"pad_inner_dim": True}, {"emulate": True}, {"round_scales_to_power_of_2": True, "pad_inner_dim": True})
RECIPES += tuple({"recipe_name": name, "emulate": True} for name in ("rowwise", "rowwise_with_gw_hp"))


def random_request(rng):
    """Numbers whose scales are powers of two, so that sums are exact in any order and every machine gets the same bits."""
    rows, inputs, outputs = rng.choice([1, 5, 16]), rng.choice([16, 32]), 16
    return {
        "config": rng.choice(RECIPES),
        "autocast": rng.random() < 0.4,
        "input": matrix(rng, rows, inputs),
        "weight": matrix(rng, outputs, inputs),
        "bias": matrix(rng, 1, outputs)[0] if rng.random() < 0.7 else None,
        "grad_output": matrix(rng, rows, outputs),
    }


def matrix(rng, rows, columns):
    def row():
        values = [rng.randint(-27, 27) for _ in range(columns)]
        values[rng.randrange(columns)] = rng.choice([-28, 28])  # 448 and 57344 are 28 times a power of two
        return values

    return [row() for _ in range(rows)]


def answer(request):
    """The layer's output and its gradients."""
    from torchao.float8.float8_linear import Float8Linear

    layer = torch.nn.Linear(len(request["weight"][0]), len(request["weight"]), bias=request["bias"] is not None)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(request["weight"]))
        if layer.bias is not None:
            layer.bias.copy_(torch.tensor(request["bias"]))
    layer = Float8Linear.from_float(layer, config=config(request["config"]))
    given = torch.tensor(request["input"], dtype=torch.float32, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=request["autocast"]):
        output = layer(given)
    output.backward(torch.tensor(request["grad_output"]).to(output.dtype))
    return {
        "dtype": str(output.dtype).removeprefix("torch."),
        "output": output.float().tolist(),
        "grad_input": given.grad.tolist(),
        "grad_weight": layer.weight.grad.tolist(),
        "grad_bias": None if layer.bias is None else layer.bias.grad.tolist(),
    }
