"""Folders of torch.distributed.checkpoint, exchanged with accel. Python's ranks hold random parts of tensors; accel reads the
folder that they write, completely and in boxes, and they read the folder that accel writes. The same with `save_state` and
`load_state` of trainings under FSDP with SHARDED_STATE_DICT, where each side also loads on another number of ranks.

usage: distributed.py --record FOLDER       writes the folder that the tests without Python read
Run as a rank, this file is Python's side.
"""
import functools
import json
import operator
import os
import shutil
import sys

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import compare
import files
import rank_group
import sharding
import states

RANKS = (1, 2, 3, 4)
TYPES = {"optimizer/param_groups/*/betas": "tuple"}


# --- state dicts ---------------------------------------------------------------------------------------------------------


def random_state(rng):
    names = [f"{index}.{rng.choice(['weight', 'bias', 'é'])}" for index in range(rng.randrange(1, 5))]
    if rng.random() < 0.5:
        return {"model": {name: files.random_tensor(rng, files.IN_SAFETENSORS) for name in names}}
    state = {name: {"step": torch.tensor(3.0), "exp_avg": files.random_tensor(rng)} for name in names}
    groups = [{"lr": 0.1, "betas": (0.9, 0.99), "foreach": None, "params": [name]} for name in names]
    return {"optimizer": {"state": state, "param_groups": groups}}


def map_tensors(function, value, path=()):
    if isinstance(value, dict):
        return {key: map_tensors(function, entry, path + (key,)) for key, entry in value.items()}
    if isinstance(value, list):
        return [map_tensors(function, entry, path + (str(place),)) for place, entry in enumerate(value)]
    return function(".".join(path), value) if isinstance(value, torch.Tensor) else value


def tensors_of(state):
    tensors = {}
    map_tensors(tensors.__setitem__, state)
    return tensors


def random_dimensions(rng, state):
    """The dimension in which each tensor is divided; None: it is equal on all ranks."""
    return {name: rng.choice([None, *range(tensor.dim())]) for name, tensor in tensors_of(state).items()}


def random_boxes(rng, state):
    boxes = {}
    for name, tensor in tensors_of(state).items():
        begins = [rng.randrange(size + 1) for size in tensor.shape]
        boxes[name] = [begins, [rng.randrange(size - begin + 1) for begin, size in zip(begins, tensor.shape)]]
    return boxes


def in_box(tensor, offsets, sizes):
    for dimension, (offset, size) in enumerate(zip(offsets, sizes)):
        tensor = tensor.narrow(dimension, offset, size)
    return tensor


# --- a rank --------------------------------------------------------------------------------------------------------------


def divided(state, dimensions):
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))

    def divide(name, tensor):
        if dimensions[name] is None:
            return tensor.clone()
        return distribute_tensor(tensor, mesh, [Shard(dimensions[name])], src_data_rank=None)

    return map_tensors(divide, state)


def answer(item):
    return train(item) if "plugin" in item else exchange(item)


def exchange(item):
    state = torch.load(item["state"])
    if item["save"]:
        dcp.save(divided(state, item["dimensions"]), storage_writer=dcp.FileSystemWriter(item["save"]))
        return {}
    loaded = divided(map_tensors(lambda _, tensor: torch.zeros_like(tensor), state), item["dimensions"])
    dcp.load(loaded, storage_reader=dcp.FileSystemReader(item["load"]))
    wholes = map_tensors(lambda _, tensor: whole(tensor), loaded)
    return {"value": files.json_of(wholes)}


def whole(tensor):
    if not isinstance(tensor, DTensor):
        return tensor
    # Bytes, since neither Gloo nor pickle knows all dtypes.
    local = tensor.to_local().contiguous()
    parts = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(parts, (local.shape, bytes(local.reshape(-1).view(torch.uint8).tolist())))
    parts = [torch.tensor(list(content), dtype=torch.uint8).view(local.dtype).reshape(shape) for shape, content in parts]
    return torch.cat(parts, tensor.placements[0].dim)


def train(item):
    """Trains `steps` micro-batches, loads from `load` if it is given, and saves to `save` if it is given. Returns the full state."""
    from accelerate.utils import set_seed
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

    with sharding.on_cpu():
        accelerator = sharding.build_accelerator(dict(item["plugin"]))
        set_seed(item["seed"])
        model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.25), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3))
        if item["plugin"]["fsdp_version"] == 1:  # the optimizer would keep parameters that no longer belong to the model
            model = accelerator.prepare(model)
        kinds = {"sgd": functools.partial(torch.optim.SGD, momentum=0.9), "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
        optimizer = kinds[item["optimizer"]](model.parameters(), lr=0.01)
        model, optimizer = accelerator.prepare(model, optimizer)
        accelerator.register_for_checkpointing(states.Counter())
        for _ in range(item["steps"]):
            accelerator.backward(model(torch.randn(4, 6)).square().mean())
            optimizer.step()
            optimizer.zero_grad()
        if item["load"]:
            accelerator.load_state(item["load"])
        if item["save"]:
            accelerator.save_state(item["save"])
            accelerator.wait_for_everyone()
        options = StateDictOptions(full_state_dict=True)
        optimizer_state = get_optimizer_state_dict(model, optimizer.optimizer, options=options)
        return {"model": files.json_of(sharding.whole_state(model)), "optimizer": files.json_of(optimizer_state)}


# --- comparisons ---------------------------------------------------------------------------------------------------------


def loaded_alone(folder):
    state = {}
    _load_state_dict(state, storage_reader=dcp.FileSystemReader(folder), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    return state


def walk(ranks, items):
    return list(rank_group.walk(__file__, ranks, items, is_launched=True))


def failure_of(answers):
    """The first problem of a rank."""
    if isinstance(answers, dict):
        return answers["failure"]
    return next((f"rank {rank}: {answer['error']}: {answer['message']}" for rank, answer in enumerate(answers) if "error" in answer), None)


def comparisons(rng, folder, count, ranks, by_accel, merge):
    """Yields (what, problem or None)."""
    states = [random_state(rng) for _ in range(count)]
    paths = [os.path.join(folder, f"{ranks}-{number}") for number in range(count)]
    for path, state in zip(paths, states):
        torch.save(state, path + ".bin")
    saves = [{"state": path + ".bin", "save": path + "-theirs", "dimensions": random_dimensions(rng, state)} for path, state in zip(paths, states)]
    loads = [{"state": path + ".bin", "save": None, "load": path + "-ours", "dimensions": random_dimensions(rng, state)} for path, state in zip(paths, states)]
    saved = walk(ranks, saves)
    boxes = [random_boxes(rng, state) for state in states]
    reads = by_accel([{"distributed": path + "-theirs", "boxes": box} for path, box in zip(paths, boxes)])
    writes = by_accel([{"write_distributed": path + ".bin", "to": path + "-ours", "types": TYPES} for path in paths])
    loaded = walk(ranks, loads)
    for number, (path, state) in enumerate(zip(paths, states)):
        what = f"{ranks} ranks, {json.dumps(saves[number]['dimensions'])}"
        yield f"read of what {what} saved", failure_of(saved[number]) or read_problem(state, boxes[number], reads[number])
        yield f"{what}, load of what accel wrote", write_problem(state, path + "-ours", loads[number], writes[number], loaded[number])
        if "model" in state:
            for flags in ([], ["--unsafe_serialization"]):
                yield f"merge-weights {flags} of what {what} saved", merge_problem(path + "-theirs", flags, merge)


def random_training(rng, ranks):
    """With a parameter of fewer rows than ranks, FSDP1 in torch 2.11 cannot load what it saved: "Missing key: optimizer.param_groups"."""
    plugin = {"fsdp_version": rng.choice([1, 2] if ranks <= 3 else [2]), "state_dict_type": "SHARDED_STATE_DICT", "wrap_modules": rng.choice([["0"], ["3"], ["0", "3"]])}
    if plugin["fsdp_version"] == 1:
        plugin["use_orig_params"] = rng.random() < 0.5
    # The other keys are those of checkpoint_answers.cpp.
    fixed = {"schedule": "none", "precision": "no", "accumulation": 1, "safe": True, "load": None, "save": None}
    return {"plugin": plugin, "optimizer": rng.choice(states.OPTIMIZERS), "seed": rng.randrange(1000), "steps": rng.randrange(1, 4)} | fixed


def trainings(rng, folder, count, ranks, train_accel):
    """Yields (what, problem or None). Accelerate needs a step before it loads under FSDP1: it loads what the optimizer already has."""
    requests = [random_training(rng, ranks) for _ in range(count)]
    paths = [os.path.join(folder, f"training-{ranks}-{number}") for number in range(count)]
    begun = walk(ranks, [dict(request, save=path + "-theirs") for request, path in zip(requests, paths)])
    full = [request["plugin"] | {"state_dict_type": "FULL_STATE_DICT"} for request in requests]
    loads = [dict(request, plugin=plugin, steps=0, load=path + "-theirs", save=path + "-again") for request, plugin, path in zip(requests, full, paths)]
    others = rng.choice(RANKS)
    loaded = train_accel(loads, others)
    ours = train_accel([dict(request, save=path + "-ours") for request, path in zip(requests, paths)], others)
    continued = walk(ranks, [dict(request, load=path + "-ours") for request, path in zip(requests, paths)])
    for request, path, *answers in zip(requests, paths, begun, loaded, ours, continued):
        what = f"{json.dumps(request)}, {ranks} ranks of Accelerate and {others} of accel"
        yield f"{what}: Accelerate's state in accel", loaded_problem(path, *answers[:2])
        yield f"{what}: accel's state in Accelerate", continued_problem(path, *answers[2:])


def saved_state(folder):
    """What torch reads from the folders of a checkpoint, as JSON."""
    folders = [os.path.join(folder, name) for name in ("pytorch_model_fsdp_0", "optimizer_0")]
    return files.json_of(functools.reduce(operator.or_, map(loaded_alone, folders)))


def full_model(folder):
    """accel names the file of a full state dict differently under FSDP2."""
    file = os.path.join(folder, "pytorch_model_fsdp.bin")
    return torch.load(file) if os.path.exists(file) else load_file(os.path.join(folder, "model.safetensors"))


def essence(state):
    """Without flags such as `fused`, which select an implementation, buffers, which differ between ranks, and the order of parameters."""
    model = {name: value for name, value in state["model"].items() if "running" not in name}
    groups = state["optimizer"]["param_groups"]
    rates = [[float(group["lr"]), float(group["weight_decay"]), sorted(group["params"])] for group in groups]
    return {"model": model, "state": state["optimizer"]["state"], "rates": rates}


def loaded_problem(path, begun, loaded):
    problem = compare.unexpected_error(begun, loaded)
    if problem:
        return problem
    saved = saved_state(path + "-theirs")
    again = files.json_of({"model": full_model(path + "-again"), "optimizer": torch.load(path + "-again/optimizer.bin")})
    buffers = [{name: state["model"][name] for name in state["model"] if "running" in name} for state in (saved, again)]
    return files.difference(essence(begun[0]), essence(saved)) or files.difference(essence(saved), essence(again)) or files.difference(*buffers)


def continued_problem(path, ours, continued):
    problem = compare.unexpected_error(continued, ours)
    if problem:
        return problem
    saved = saved_state(path + "-ours")
    return next(filter(None, (files.difference(essence(saved), essence(of_rank)) for of_rank in continued)), None)


def read_problem(state, boxes, answer):
    tensors = tensors_of(state)
    expected = {
        "value": files.json_of(state),
        "tensors": files.json_of(tensors),
        "boxes": files.json_of({name: in_box(tensors[name], *box) for name, box in boxes.items()}),
    }
    return answer.get("failure") or files.difference(expected, answer)


def write_problem(state, folder, load, answer, loaded):
    if "failure" in answer:
        return answer["failure"]
    alone = loaded_alone(folder)
    if "optimizer" in alone and type(alone["optimizer"]["param_groups"][0]["betas"]) is not tuple:
        return "betas are no tuple"
    problem = files.difference(files.json_of(state), files.json_of(alone)) or failure_of(loaded)
    return problem or next(filter(None, (files.difference(files.json_of(state), of_rank["value"]) for of_rank in loaded)), None)


def merge_problem(folder, flags, merge):
    from accelerate.utils import merge_fsdp_weights

    theirs, ours = folder + "-merged-theirs", folder + "-merged-ours"
    for output in (theirs, ours):
        shutil.rmtree(output, ignore_errors=True)
    merge_fsdp_weights(folder, theirs, safe_serialization=not flags)
    problem = merge([folder, ours, *flags])
    if problem:
        return problem
    left, right = files.files_in(theirs), files.files_in(ours)
    if list(left) != list(right):
        return f"files {list(left)} and {list(right)}"
    for name in left:
        if name.endswith(".safetensors") and left[name] != right[name]:
            return f"{name}: {left[name][:300]} and {right[name][:300]}"
        if name.endswith(".bin"):
            return files.difference(*(files.json_of(torch.load(os.path.join(output, name))) for output in (theirs, ours)))
    return None


# --- a folder for the tests without Python ------------------------------------------------------------------------------


def record(folder):
    """Two tensors on two ranks, divided by rows and by columns, an empty part, and objects."""
    state = {
        "model": {"0.weight": torch.arange(6.0).reshape(3, 2), "0.bias": torch.arange(3, dtype=torch.int16).reshape(1, 3), "count": torch.tensor(7)},
        "groups": [{"lr": 0.5, "betas": (0.9, 0.99)}],
        "note": None,
    }
    torch.save(state, folder + ".bin")
    dimensions = {"model.0.weight": 0, "model.0.bias": 0, "model.count": None}
    answers = walk(2, [{"state": folder + ".bin", "save": folder, "dimensions": dimensions}])
    os.remove(folder + ".bin")
    if failure_of(answers[0]):
        sys.exit(failure_of(answers[0]))


if __name__ == "__main__":
    if sys.argv[1] == "--record":
        record(sys.argv[2])
    else:
        sys.exit(rank_group.serve(answer))
