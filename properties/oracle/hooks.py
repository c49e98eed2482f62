"""Hooks of modules under Accelerate; hook_answers.cpp is the same in C++.

A request has "model": {"kind": "leaf" | "block" | "sequential", "sign", "shift", "children"}; "hooks": a list of {"before", "after",
"no_grad"} and {"parts": numbers of earlier hooks}; and "actions", in their order: ["add", module, hook, append], ["remove", module,
recurse], ["call", module]. Modules are named as in named_modules(). An answer has "events", [what, hook, module, sum, mode], and
"outputs", [value, requires_grad]. Values are integers, so that sums are exact.

SequentialHook ignores the no_grad of its hooks (R11 of `reports/differences.md`), which is corrected here.
"""
import accelerate.hooks
import torch
from torch import nn


class CorrectedSequentialHook(accelerate.hooks.SequentialHook):
    @property
    def no_grad(self):
        return any(hook.no_grad for hook in self.hooks)


class Leaf(nn.Module):
    def __init__(self, sign, shift):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([float(sign)], dtype=torch.float64))
        self.shift = shift

    def forward(self, x):
        return x * self.weight + self.shift


class Block(nn.Module):
    def __init__(self, children):
        super().__init__()
        for place, child in enumerate(children):
            self.add_module(str(place), child)

    def forward(self, x):
        for child in self.children():
            x = child(x) + 1
        return x


class Noting(accelerate.hooks.ModelHook):
    def __init__(self, number, described, names, events):
        self.no_grad = described["no_grad"]
        self._number, self._before, self._after = number, described["before"], described["after"]
        self._names, self._events = names, events

    def _note(self, what, module, value=0):
        self._events.append([what, self._number, self._names[module], int(value), torch.is_grad_enabled()])

    def init_hook(self, module):
        self._note("init", module)
        return module

    def pre_forward(self, module, x):
        self._note("pre", module, x)
        return (x + self._before,), {}

    def post_forward(self, module, output):
        self._note("post", module, output)
        return output + self._after

    def detach_hook(self, module):
        self._note("detach", module)
        return module


def random_request(rng):
    def module(depth, in_sequential=False):
        kinds = ["leaf", "leaf", "block"] + ([] if in_sequential else ["sequential"])  # LibTorch's Sequentials cannot be nested directly
        kind = "block" if depth == 0 else "leaf" if depth == 3 else rng.choice(kinds)
        count = 0 if kind == "leaf" else rng.randrange(1, 4)
        children = [module(depth + 1, kind == "sequential") for _ in range(count)]
        return {"kind": kind, "sign": rng.choice([-1, 1]), "shift": rng.randrange(5), "children": children}

    def names(described, name=""):
        prefix = name + "." if name else ""
        return [name] + [inner for place, child in enumerate(described["children"]) for inner in names(child, f"{prefix}{place}")]

    model = module(0)
    hooks = []
    for number in range(rng.randrange(1, 7)):
        if number > 1 and rng.random() < 0.25:
            hooks.append({"parts": [rng.randrange(number) for _ in range(rng.randrange(1, 4))]})
        else:
            hooks.append({"before": rng.randrange(-9, 10), "after": rng.randrange(-9, 10), "no_grad": rng.random() < 0.2})
    modules, actions = names(model), []
    for _ in range(rng.randrange(3, 15)):
        what, name = rng.random(), rng.choice(modules)
        if what < 0.5:
            actions.append(["add", name, rng.randrange(len(hooks)), rng.random() < 0.6])
        elif what < 0.7:
            actions.append(["remove", name, rng.random() < 0.5])
        else:
            actions.append(["call", rng.choice([name, ""])])
    return {"model": model, "hooks": hooks, "actions": actions + [["call", ""]]}


def build(described):
    children = [build(child) for child in described["children"]]
    if described["kind"] == "leaf":
        return Leaf(described["sign"], described["shift"])
    return nn.Sequential(*children) if described["kind"] == "sequential" else Block(children)


def answer(request):
    modules = dict(build(request["model"]).named_modules())
    names = {module: name for name, module in modules.items()}
    events, hooks, outputs = [], [], []
    for number, described in enumerate(request["hooks"]):
        parts = described.get("parts")
        hooks.append(Noting(number, described, names, events) if parts is None else CorrectedSequentialHook(*[hooks[part] for part in parts]))
    original, accelerate.hooks.SequentialHook = accelerate.hooks.SequentialHook, CorrectedSequentialHook
    try:
        for what, name, *rest in request["actions"]:
            if what == "add":
                accelerate.hooks.add_hook_to_module(modules[name], hooks[rest[0]], append=rest[1])
            elif what == "remove":
                accelerate.hooks.remove_hook_from_module(modules[name], recurse=rest[0])
            else:
                output = modules[name](torch.tensor([3.0], dtype=torch.float64))
                outputs.append([int(output), output.requires_grad])
    finally:
        accelerate.hooks.SequentialHook = original
    return {"events": events, "outputs": outputs}


def difference(theirs, ours):
    """The first event or output that differs; None if none does."""
    for key in ("events", "outputs"):
        for place, (their, our) in enumerate(zip(theirs[key], ours[key])):
            if their != our:
                return f"{key}[{place}]: {their} and {our}"
        if len(theirs[key]) != len(ours[key]):
            return f"{len(theirs[key])} and {len(ours[key])} {key}"
    return None
