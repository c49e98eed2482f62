"""Device maps of random module trees, as Accelerate plans them; device_map_answers.cpp is the same in C++.

A request has "tensors": [{"shape", "dtype"}], numbered in the order of the model; "model": {"class", "parameters": [[key, number]],
"buffers": [[key, number]], "children": [[key, model]]}; and the arguments. An answer has "sizes", "maximum", "tied", "map" and
"balanced", each a value, or None if Accelerate fails.

The requests leave out what Accelerate gets wrong (`reports/differences.md`): it loses the buffers of a module that it splits, takes a name
for part of another if it only contains it, and miscounts tensors that are shared by more than two modules, or under fallback. Its
fallback also fails on sizes that are no whole numbers, as those of tensors of bool are: "'float' object has no attribute 'upper'".
"""
import logging
import warnings

import torch
from accelerate.utils import modeling
from torch import nn

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)
KINDS = {name: type(name, (nn.Module,), {}) for name in ("Block", "Layer", "Part")}
DTYPES = ("float32", "float16", "int64", "bool")


def random_request(rng):
    tensors, keys = [], iter(range(10**6))

    def tensor():
        dtype = rng.choice(DTYPES)
        tensors.append({"shape": [8 * rng.randrange(5), rng.randrange(1, 5)], "dtype": dtype})
        return len(tensors) - 1

    def module(depth):
        children = 0 if depth == 4 else rng.randrange(5 if depth else 7)
        made = {"class": rng.choice(list(KINDS)), "parameters": [[f"w{next(keys)}", tensor()] for _ in range(rng.randrange(3))], "buffers": [], "children": []}
        if depth == 0 or not children:
            made["buffers"] = [[f"b{next(keys)}", -1] for _ in range(rng.randrange(3))]
        made["children"] = [[f"m{next(keys)}", module(depth + 1)] for _ in range(children)]
        return made

    model = module(0)
    number_buffers(model, tensor)
    fallback = rng.random() < 0.3
    if fallback:
        for described in tensors:
            described["dtype"] = described["dtype"].replace("bool", "int64")
    elif rng.random() < 0.5:
        tie(rng, model)
    total = sum(8 * t["shape"][0] * t["shape"][1] // 2 for t in tensors) or 100
    gpus = range(rng.randrange(4))
    limits = [[gpu, rng.randrange(total)] for gpu in gpus]
    if not limits or rng.random() < 0.5:
        limits.append(["cpu", rng.randrange(total)])
    return {
        "tensors": tensors,
        "model": model,
        "max_memory": limits,
        "no_split_module_classes": rng.sample(list(KINDS), rng.randrange(3)),
        "dtype": rng.choice([None, None, "float16"]),
        "clean_result": rng.random() < 0.5,
        "offload_buffers": rng.random() < 0.5,
        "fallback_allocation": fallback,
        "low_zero": rng.random() < 0.5,
    }


def number_buffers(model, tensor):
    for entry in model["buffers"]:
        entry[1] = tensor()
    for _, child in model["children"]:
        number_buffers(child, tensor)


def tie(rng, model):
    """The last parameter of one module is the first of another that comes later."""
    modules = []

    def walk(module):
        modules.append(module)
        for _, child in module["children"]:
            walk(child)

    walk(model)
    modules = [module for module in modules if module["parameters"]]
    if len(modules) > 1:
        first, second = sorted(rng.sample(range(len(modules)), 2))
        modules[second]["parameters"][0][1] = modules[first]["parameters"][-1][1]


def build(request):
    made = {}

    def tensor(number, is_parameter):
        if number not in made:
            described = request["tensors"][number]
            values = torch.empty(described["shape"], dtype=getattr(torch, described["dtype"]), device="meta")
            made[number] = nn.Parameter(values, requires_grad=False) if is_parameter else values
        return made[number]

    def module(described):
        result = KINDS[described["class"]]()
        for key, number in described["parameters"]:
            result.register_parameter(key, tensor(number, True))
        for key, number in described["buffers"]:
            result.register_buffer(key, tensor(number, False))
        for key, child in described["children"]:
            result.add_module(key, module(child))
        return result

    return module(request["model"])


def attempt(plan):
    """The known fault with tied parameters (`reports/differences.md`) is the only error that is no difference."""
    try:
        return plan()
    except IndexError:
        return None


class Devices:
    """torch.device as on a machine with GPUs, where a number means a GPU."""

    def __enter__(self):
        self._device = torch.device
        modeling.torch = type("Torch", (), {"__getattr__": lambda _, name: self._of if name == "device" else getattr(torch, name)})()

    def __exit__(self, *_):
        modeling.torch = torch

    def _of(self, device):
        return self._device("cuda", device) if isinstance(device, int) else self._device(device)


def answer(request):
    model = build(request)
    limits = {device: size for device, size in request["max_memory"]}
    sizing = {"no_split_module_classes": request["no_split_module_classes"], "dtype": request["dtype"]}
    options = {key: request[key] for key in ("clean_result", "offload_buffers", "fallback_allocation")}
    total, (largest, layers) = modeling.calculate_maximum_sizes(model)
    with Devices():
        balanced = attempt(lambda: modeling.get_balanced_memory(model, dict(limits), low_zero=request["low_zero"], **sizing))
    device_map = attempt(lambda: modeling.infer_auto_device_map(model, dict(limits), **sizing, **options))
    return {
        "sizes": {name: int(size) for name, size in modeling.compute_module_sizes(model, dtype=request["dtype"]).items()} or {"": 0},
        "maximum": [int(total), int(largest), layers],
        "tied": sorted(modeling.find_tied_parameters(model)),
        "map": None if device_map is None else {name: str(device) for name, device in device_map.items()},
        "balanced": None if balanced is None else {str(device): int(size) for device, size in balanced.items()},
    }


def difference(theirs, ours):
    """The part of an answer that differs; None if none does."""
    for key, their in theirs.items():
        if their is not None and their != ours[key]:
            return f"{key}: {their} and {ours[key]}"
    return None
