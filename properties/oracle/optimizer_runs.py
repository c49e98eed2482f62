"""Steps of one optimizer on gradients given by a formula; properties/gen/optimizer_runs.cpp is the same in C++.

LBFGS, whose steps LibTorch rounds differently, only loads a state dict and returns it. Tensors are sent as {"dtype", "shape", "hex"}; requests and answers are described in that file's header.
"""
import torch

from optimizers import OPTIMIZERS, build_optimizer, random_optimizer, arguments

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "complex64": torch.complex64}
LATE_STEP = 5
EMPTY_STEP = 4
LBFGS = "lbfgs"


def numbers(shape, offset, factor):
    count = 1
    for size in shape:
        count *= size
    index = torch.arange(count)
    return (((index * index * 13 + index * 17 + offset).remainder(2003) - 1001).to(torch.float64) / factor).reshape(shape)


def json_of_tensor(tensor):
    tensor = tensor.detach().contiguous()
    name = next(name for name, dtype in DTYPES.items() if dtype == tensor.dtype)
    return {"dtype": name, "shape": list(tensor.shape), "hex": bytes(tensor.reshape(-1).view(torch.uint8).tolist()).hex()}


def tensor_of(json):
    content = torch.tensor(list(bytes.fromhex(json["hex"])), dtype=torch.uint8)
    return content.view(DTYPES[json["dtype"]]).reshape(json["shape"])


def json_of(value):
    if isinstance(value, torch.Tensor):
        return json_of_tensor(value)
    if isinstance(value, dict):
        return {str(key): json_of(element) for key, element in value.items()}
    return [json_of(element) for element in value] if isinstance(value, (list, tuple)) else value


def of_json(json):
    if isinstance(json, list):
        return [of_json(element) for element in json]
    return tensor_of(json) if isinstance(json, dict) else json


def state_dict_of(json):
    """The keys of `state` are numbers in Python."""
    state = {int(key): {name: of_json(entry) for name, entry in entries.items()} for key, entries in json["state"].items()}
    groups = [{key: tuple(value) if isinstance(value, list) and key != "params" else value for key, value in group.items()} for group in json["param_groups"]]
    return {"state": state, "param_groups": groups}


def start(request):
    optimizer, params = None, []
    for group in request["groups"]:
        own = []
        for shape in group["shapes"]:
            values = numbers(shape, request["seed"] * 17 + len(params) * 7919, 512).to(DTYPES[request["dtype"]])
            own.append(values.requires_grad_())
            params.append(own[-1])
        if group["optimizer"]["name"] == "lbfgs":
            optimizer = torch.optim.LBFGS(own, **{key: value for key, value in group["optimizer"].items() if key != "name"})
        elif optimizer is None:
            optimizer = build_optimizer(group["optimizer"], own, request.get("fused", True))
        else:
            optimizer.add_param_group({"params": own} | arguments(group["optimizer"]))
    return optimizer, params


def closure(request, optimizer, params):
    def evaluate():
        optimizer.zero_grad()
        loss = 0
        for number, param in enumerate(params):
            target = numbers(param.shape, request["seed"] * 31 + number * 104729, 256).to(param.dtype)
            distance = param - target
            loss = loss + (distance * distance * (target * target + 1)).sum() + (distance * distance * distance * distance).sum()
        loss.backward()
        return loss

    return evaluate


def take_gradient(optimizer, param, step, offset):
    if not isinstance(optimizer, torch.optim.SparseAdam):
        param.grad = numbers(param.shape, offset, 256).to(param.dtype)
        return
    index = torch.arange(0 if step % EMPTY_STEP == EMPTY_STEP - 1 else 5)
    param.grad = None
    selected = torch.nn.functional.embedding((index * index + step) % param.shape[0], param, sparse=True)
    (selected * numbers(selected.shape, offset, 256).to(param.dtype)).sum().backward()


def run(request):
    optimizer, params = start(request)
    first = 0
    if request["start"] is not None:
        first = request["start"]["step"]
        with torch.no_grad():
            for param, saved in zip(params, request["start"]["parameters"], strict=True):
                param.copy_(tensor_of(saved))
        optimizer.load_state_dict(state_dict_of(request["start"]["state_dict"]))
    for step in range(first, request["steps"]):
        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.step(closure(request, optimizer, params))
            continue
        for number, param in enumerate(params):
            if step >= LATE_STEP or request["late"] != number:
                take_gradient(optimizer, param, step, request["seed"] * 31 + step * 7919 + number * 104729)
        optimizer.step()
    state_dict = json_of(optimizer.state_dict())
    for entries in state_dict["state"].values():  # for LBFGS, numbers or tensors of one element
        if isinstance(entries.get("t"), dict):
            entries["t"] = tensor_of(entries["t"]).item()
        if isinstance(entries.get("H_diag"), int):
            entries["H_diag"] = json_of_tensor(torch.tensor(float(entries["H_diag"]), dtype=params[0].dtype))
    return {"parameters": [json_of_tensor(param) for param in params], "state_dict": state_dict}


SHAPES = ((1,), (3,), (5, 13), (2, 0), (67,), ())
MATRICES = ((1, 1), (3, 2), (5, 13), (13, 5), (67, 1), (1, 9))
# Python's Muon and Adafactor divide by the number of elements.
SHAPES_OF = {"muon": MATRICES, "sparse_adam": (*MATRICES, (2, 0)), "adafactor": ((1,), (3,), (5, 13), (67,), (), (2, 3, 4), (1, 9))}
CASTS_SCALARS = ("nadam", "asgd")  # Python casts scalars of the state but `step` to the parameters' dtype when it loads them


def random_request(rng, name, shapes=None, dtypes=("float32", "float32", "float64", "bfloat16")):
    """All groups have the same keys, since Python's groups take missing ones from the first group."""
    shapes = SHAPES_OF.get(name, shapes or SHAPES)
    if name == LBFGS:
        return random_lbfgs(rng, shapes)
    groups = [{"optimizer": random_optimizer(rng, name), "shapes": list(map(list, shapes))}]
    momentum = groups[0]["optimizer"].get("momentum", 0.0) > 0
    if name != "adagrad" and rng.random() < 0.4:  # Python's Adagrad fails if a group is added
        other = dict(groups[0]["optimizer"], lr=rng.choice([0.1, 0.0007]))
        groups.append({"optimizer": other, "shapes": [[7, 1] if shapes[0] == MATRICES[0] else [7], [3, 3]]})
    fused = name == "sgd" or rng.random() < 0.7
    # Python's fused SGD fails if a parameter's first gradient comes after those of others (its multi-tensor form uses single tensors
    # in that step, which round bfloat16 differently), and updates few bfloat16 numbers.
    # LibTorch's own SGD rounds the momentum to bfloat16 before it multiplies by it, and Python's does not.
    is_fused_sgd = name == "fused_sgd" and fused
    is_sound_in_bfloat16 = name != "sgd" and not is_fused_sgd
    return {
        "groups": groups,
        "fused": fused,
        "dtype": rng.choice([dtype for dtype in dtypes if is_sound_in_bfloat16 or dtype != "bfloat16"]),
        "seed": rng.randrange(1000),
        "late": 2 if not (name == "fused_sgd" and momentum) and rng.random() < 0.3 else None,
        "start": None,
        "steps": rng.choice([1, 7, 30]),
    }


def random_lbfgs(rng, shapes):
    options = {
        "lr": rng.choice([1.0, 0.5, 0.01]),
        "max_iter": rng.choice([2, 5, 20]),
        "history_size": rng.choice([1, 3, 100]),
        "line_search_fn": rng.choice([None, "strong_wolfe"]),
    }
    groups = [{"optimizer": {"name": LBFGS} | {key: value for key, value in options.items() if value is not None}, "shapes": list(map(list, shapes))}]
    request = {"groups": groups, "fused": False, "dtype": "float64", "seed": rng.randrange(1000), "late": None, "start": None, "steps": rng.choice([1, 2, 4])}
    return resumed(request, run(request), request["steps"])


def random_requests(rng, of_each):
    return [random_request(rng, name) for name in [*OPTIMIZERS, LBFGS] for _ in range(of_each)]


def resumed(request, answer, steps):
    """The request that continues from an answer."""
    saved = {"step": request["steps"], "parameters": answer["parameters"], "state_dict": answer["state_dict"]}
    return dict(request, start=saved, steps=steps)


def difference(theirs, ours, place="answer"):
    """The first difference, as a sentence. A number that is an int in Python is a float in C++."""
    if isinstance(theirs, bool) or not isinstance(theirs, (dict, list, int, float)):
        return None if theirs == ours and type(theirs) is type(ours) else f"{place} is {theirs} and {ours}"
    if isinstance(theirs, (int, float)):
        same = isinstance(ours, (int, float)) and not isinstance(ours, bool) and theirs == ours
        return None if same else f"{place} is {theirs} and {ours}"
    if type(theirs) is not type(ours):
        return f"{place} is {theirs} and {ours}"
    if isinstance(theirs, list):
        if len(theirs) != len(ours):
            return f"{place} has {len(theirs)} and {len(ours)} elements"
        pairs = [(str(index), left, right) for index, (left, right) in enumerate(zip(theirs, ours))]
    else:
        if theirs.keys() != ours.keys():
            return f"{place}: only one side has {sorted(theirs.keys() ^ ours.keys())}"
        if "hex" in theirs and theirs != ours:
            return difference_of_tensors(theirs, ours, place)
        pairs = [(key, theirs[key], ours[key]) for key in theirs]
    for key, left, right in pairs:
        found = difference(left, right, f"{place}.{key}")
        if found is not None:
            return found
    return None


def difference_of_tensors(theirs, ours, place):
    if (theirs["dtype"], theirs["shape"]) != (ours["dtype"], ours["shape"]):
        return f"{place} is {theirs['dtype']}{theirs['shape']} and {ours['dtype']}{ours['shape']}"
    left, right = tensor_of(theirs).reshape(-1), tensor_of(ours).reshape(-1)
    if torch.equal(left.isnan(), right.isnan()) and torch.equal(left.nan_to_num(), right.nan_to_num()) and left.isnan().any():
        return None  # a NaN's sign is not compared
    index = next((i for i in range(left.numel()) if theirs["hex"] != ours["hex"] and not torch.equal(left[i], right[i])), None)
    if index is None:
        return f"{place} differs in the sign of a zero"
    return f"{place}[{index}] is {left[index].item()} and {right[index].item()}"
