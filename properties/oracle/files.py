"""Files of checkpoints, exchanged with accel. `oracle-answers` reads what torch, safetensors and Accelerate write, and they read what it
writes; both must find equal values. safetensors and indices are equal byte for byte.

usage: files.py --record FOLDER       writes the files that the tests without Python read
"""
import collections
import itertools
import json
import os
import random
import sys

import numpy
import torch
from accelerate import Accelerator

DTYPES = """bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex64 complex128 complex32
float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu""".split()
IN_SAFETENSORS = [name for name in DTYPES if name not in ("complex128", "complex32")]
TEXTS = ["", "a", "weight", "0.bias", "é", "\U0001f600", '"\\\n\x01\x7f', "x" * 300]


# --- objects -------------------------------------------------------------------------------------------------------------


def random_tensor(rng, dtypes=tuple(DTYPES), can_be_empty=True):
    dtype = getattr(torch, rng.choice(dtypes))
    shape = [rng.randrange(0 if can_be_empty else 1, 5) for _ in range(rng.randrange(4))]
    count = int(numpy.prod(shape, dtype=int)) * dtype.itemsize
    limit = 2 if dtype == torch.bool else 256
    content = torch.tensor([rng.randrange(limit) for _ in range(count)], dtype=torch.uint8).view(dtype).reshape(shape)
    if content.dim() >= 2 and rng.random() < 0.3:
        content = content.transpose(0, 1)
    if content.dim() >= 1 and rng.random() < 0.2:
        content = content[content.shape[0] // 2 :]
    return content


def random_object(rng, depth=0):
    leaves = [
        lambda: None,
        lambda: rng.random() < 0.5,
        lambda: rng.choice([0, 1, -1, 255, 256, 65535, 65536, -(2**31), 2**31, 2**63 - 1, -(2**63), rng.randrange(10**12)]),
        lambda: rng.choice([0.0, -0.0, 0.1, 1e300, -5e-324, float(rng.random())]),
        lambda: rng.choice(TEXTS),
        lambda: random_tensor(rng),
        lambda: torch.nn.Parameter(torch.randn(2, 3)),
        lambda: bytes([rng.randrange(256) for _ in range(rng.randrange(1, 5))] + [255]),
        lambda: torch.Size([1, 2]),
        lambda: rng.choice([torch.float32, torch.bfloat16]),
        lambda: torch.device("cpu"),
        lambda: numpy.arange(6, dtype=rng.choice(["<f4", ">f8", "<i2", ">u2", "<c8"])).reshape(2, 3),
        lambda: numpy.asfortranarray(numpy.arange(24.0).reshape(2, 3, 4)),
        lambda: rng.choice([numpy.float32(1.5), numpy.int16(-3), numpy.uint64(7), numpy.bool_(True), numpy.float64(0.1)]),
    ]
    if depth >= 4 or rng.random() < 0.6:
        return rng.choice(leaves)()
    items = [random_object(rng, depth + 1) for _ in range(rng.choice([0, 1, 2, 3, 4, 7]))]
    if len(items) > 1 and rng.random() < 0.3:
        items.append(items[0])  # the same object twice
    keys = [f"{rng.choice(TEXTS[:5])}{index}" for index in range(len(items))]
    kinds = [
        lambda: items,
        lambda: tuple(items),
        lambda: dict(zip(keys, items)),
        lambda: collections.OrderedDict(zip(keys, items)),
        lambda: collections.defaultdict(dict, zip(range(len(items)), items)),
        lambda: dict(zip(range(-1, len(items)), items)),
        lambda: {rng.randrange(100) for _ in range(3)},
        lambda: frozenset(range(3)),
        lambda: collections.Counter([4, 4, 8]),
    ]
    return rng.choice(kinds)()


def tied_tensors(rng):
    """Tensors that share memory."""
    whole = torch.arange(24.0).reshape(4, 6)
    return {"whole": whole, "row": whole[2], "columns": whole[:, 1:3], "transposed": whole.t(), "other": torch.zeros(2), "wide": torch.ones(1).expand(5)}


# --- what is compared ----------------------------------------------------------------------------------------------------


def json_of(value):
    """In the form of properties/gen/value_json.cpp."""
    if isinstance(value, torch.Tensor):
        content = value.detach().clone(memory_format=torch.contiguous_format)
        name = str(content.dtype).split(".")[1]
        octets = content.reshape(-1).view(torch.uint8).tolist() if content.numel() else []
        return {"dtype": name, "shape": list(content.shape), "hex": bytes(octets).hex()}
    if isinstance(value, numpy.ndarray):
        return json_of(torch.from_numpy(numpy.ascontiguousarray(value).astype(value.dtype.newbyteorder("="))))
    if isinstance(value, numpy.generic):
        return json_of(value.item())
    if isinstance(value, dict):
        return {str(key): json_of(element) for key, element in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [json_of(element) for element in value]
    if isinstance(value, bytes):
        return bytes_json(value)
    if isinstance(value, (torch.dtype, torch.device)):
        return str(value)
    return value


def bytes_json(value):
    """A Value's strings are bytes, so bytes that are valid text look like text."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"bytes": value.hex()}


def difference(expected, found):
    """Numbers are compared with their types."""
    expected, found = (json.dumps(value, sort_keys=True) for value in (expected, found))
    if expected == found:
        return None
    place = next((i for i, (left, right) in enumerate(zip(expected, found)) if left != right), min(len(expected), len(found)))
    return f"{expected[max(0, place - 80) : place + 120]} and {found[max(0, place - 80) : place + 120]}"


def memory_of(tensors):
    """Which tensors share memory, and their offsets in it."""
    numbers = {}
    forms = {name: (tensor.storage_offset(), tensor.stride(), tensor.untyped_storage().nbytes()) for name, tensor in tensors.items()}
    return {name: (numbers.setdefault(tensor.untyped_storage()._cdata, len(numbers)), forms[name]) for name, tensor in sorted(tensors.items())}


class StateModel(torch.nn.Module):
    """A model that returns a given state."""

    def __init__(self, state):
        super().__init__()
        self._state = state

    def state_dict(self, *_, **__):
        return collections.OrderedDict(self._state)


def random_state(rng, dtypes):
    names = [f"{index}.{rng.choice(['weight', 'bias', 'é'])}" for index in range(rng.randrange(1, 12))]
    # Accelerate drops every empty tensor but the first, and every view of memory that it has already seen: not compared.
    state = {name: random_tensor(rng, dtypes, can_be_empty=False).clone(memory_format=torch.preserve_format) for name in names}
    for name in list(state):
        if rng.random() < 0.2:
            state[f"tied.{name}"] = state[name]
    rng.shuffle(order := list(state))
    return {name: state[name] for name in order}


def files_in(folder):
    return {name: open(os.path.join(folder, name), "rb").read() for name in sorted(os.listdir(folder))}


# --- comparisons: (what, request, check of the answer) --------------------------------------------------------------------


def comparisons(rng, folder, count):
    names = (os.path.join(folder, f"{number}") for number in itertools.count())
    for _ in range(count):
        yield reads_what_torch_saves(rng, next(names))
        yield from copies_are_equal(rng, next(names))
        for safe_serialization in (True, False):
            yield from models_are_equal(rng, next(names), safe_serialization)


def reads_what_torch_saves(rng, path):
    value, protocol = random_object(rng), rng.choice([2, 2, 3, 4, 5])
    torch.save(value, path, pickle_protocol=protocol)
    return f"read of protocol {protocol}", {"read": path}, lambda answer: difference({"value": json_of(value)}, answer)


def copies_are_equal(rng, path):
    state = {"state": {10: tied_tensors(rng), 9: {}}, "param_groups": [{"betas": (0.9, 0.999), "params": [0, 1]}, {"betas": (0.5, 0.5), "params": []}]}
    state["model"] = collections.OrderedDict(sorted(tied_tensors(rng).items()))
    state["random"] = {f"{index}": random_tensor(rng) for index in range(4)}
    torch.save(state, path)
    types = {"state": "integer_keys", "param_groups/*/betas": "tuple", "model": "ordered"}

    def check(answer):
        if "failure" in answer:
            return answer["failure"]
        ours = torch.load(path + ".ours", weights_only=True)
        kinds = [type(part) for part in (ours["model"], ours["param_groups"][0]["betas"], list(ours["state"])[0], ours["state"])]
        if kinds != [collections.OrderedDict, tuple, int, dict] or list(ours["state"]) != [9, 10]:
            return f"types {kinds}"
        mapped = torch.load(path + ".ours", weights_only=True, mmap=True)
        for place in ("model", "random"):
            if memory_of(state[place]) != memory_of(ours[place]):
                return f"memory {memory_of(state[place])} and {memory_of(ours[place])}"
        return difference(json_of(state), json_of(ours)) or difference(json_of(state), json_of(mapped))

    yield "copy of an optimizer's state", {"copy": path, "to": path + ".ours", "types": types}, check


def models_are_equal(rng, path, safe_serialization):
    state = random_state(rng, IN_SAFETENSORS if safe_serialization else DTYPES)
    size = rng.choice(["0.03KB", " 0.1 kb", "1KB", "10GB"])
    theirs, ours = path + "-theirs", path + "-ours"
    torch.save(state, path)
    Accelerator(cpu=True).save_model(StateModel(state), theirs, max_shard_size=size, safe_serialization=safe_serialization)

    def check(answer):
        if "failure" in answer:
            return answer["failure"]
        left, right = files_in(theirs), files_in(ours)
        if sorted(left) != sorted(right):
            return f"files {sorted(left)} and {sorted(right)}"
        for name, content in left.items():
            if name.endswith(".bin"):
                loaded = [torch.load(os.path.join(where, name), weights_only=True) for where in (theirs, ours)]
                why = difference(*map(json_of, loaded)) or (list(loaded[0]) != list(loaded[1]) and f"{name}: another order")
                why = why or (memory_of(loaded[0]) != memory_of(loaded[1]) and f"{name}: memory is shared otherwise")
            else:
                why = content != right[name] and f"{name}: {content[:300]} and {right[name][:300]}"
            if why:
                return why
        return None

    request = {"save": path, "names": list(state), "to": ours, "max_shard_size": size, "safe_serialization": safe_serialization}
    what = "safetensors" if safe_serialization else "files of torch.save"
    yield f"model in {what}", request, check
    kept = {name: tensor for name, tensor in state.items() if not safe_serialization or not is_tied(state, name)}
    yield f"read of a model in {what}", {"weights": theirs}, lambda answer: difference({"value": json_of(kept)}, answer)


def is_tied(state, name):
    """Whether an earlier tensor is the same one."""
    return any(state[other] is state[name] for other in itertools.takewhile(lambda key: key != name, state))


# --- files for the tests without Python ------------------------------------------------------------------------------------


def record(folder):
    os.makedirs(folder, exist_ok=True)
    rng = random.Random(20261122)
    value = {"tied": tied_tensors(rng), "list": [1, 2.5, None, True, -5, 300, 70000, 2**40, "hé", b"\xff\x00"], "tuple": (1, (2, 3), (1, 2, 3, 4), ())}
    value |= {"parameter": torch.nn.Parameter(torch.arange(6.0).reshape(2, 3)), "numpy": numpy.arange(3.0), "scalar": numpy.float32(1.5), 3: {1, 2}}
    value |= {"big_endian": numpy.arange(3, dtype=">f4"), "fortran": numpy.asfortranarray(numpy.arange(6.0).reshape(2, 3)), "dtype": torch.float16}
    value |= {"device": torch.device("cuda", 1), "size": torch.Size([1, 2]), "counter": collections.Counter([4, 4]), "frozen": frozenset([1]), "empty": b""}
    value |= {"default": collections.defaultdict(dict, {1: 2}), "model": torch.nn.Linear(2, 1).requires_grad_(False).state_dict()}
    value |= {"dtypes": {name: torch.arange(3, dtype=torch.uint8).repeat(16)[: 2 * getattr(torch, name).itemsize].view(getattr(torch, name)) for name in DTYPES if name != "bool"}}
    for protocol in (2, 3, 4, 5):
        torch.save(value, os.path.join(folder, f"plain_protocol{protocol}.bin"), pickle_protocol=protocol)
    with open(os.path.join(folder, "plain.json"), "w") as file:
        json.dump(json_of(value), file)
    states = {"step": 7, "random_state": random.Random(3).getstate(), "numpy_random_seed": numpy.random.RandomState(3).get_state()}
    torch.save(states | {"torch_manual_seed": torch.manual_seed(3).get_state()}, os.path.join(folder, "random_states_0.pkl"))
    state = {name: torch.arange(3 * getattr(torch, name).itemsize, dtype=torch.uint8).view(getattr(torch, name)) for name in IN_SAFETENSORS if name != "bool"}
    state |= {"mask": torch.tensor([True, False]), 'é "\\\n\x7f\U0001f600': torch.zeros(()), "empty": torch.zeros(0, 3)}
    for size in ("10GB", "0.02KB"):
        Accelerator(cpu=True).save_model(StateModel(state), os.path.join(folder, f"model_{size}"), max_shard_size=size)
    torch.save(state, os.path.join(folder, "model.bin"))


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "--record":
        sys.exit(__doc__)
    record(sys.argv[2])
