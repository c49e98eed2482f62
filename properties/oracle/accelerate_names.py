"""The public names of Accelerate 1.15: what `accelerate` and `accelerate.utils` import, also for packages that are not installed, what
MODULES define, and the commands. properties/names compares them with ours; live.py checks that they are still as recorded.

usage: accelerate_names.py    writes recorded/accelerate_names.json: `function`, `Class`, `Class.member` or `accelerate command`, each with
                              its parameters, which are flags for a command
"""
import argparse
import ast
import enum
import importlib
import inspect
import json
import os
import textwrap

import accelerate
import accelerate.utils
from accelerate.commands import accelerate_cli

MODULES = ["accelerator", "big_modeling", "checkpointing", "data_loader", "hooks", "inference", "launchers", "local_sgd", "logging", "optimizer", "parallelism_config", "scheduler",
           "state", "tracking", "utils.dataclasses", "utils.memory"]  # fmt: skip
RECORDED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "recorded", "accelerate_names.json")
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def names():
    """The parameters of each name."""
    found = {}
    for name, thing in (exported(accelerate) | exported(accelerate.utils) | defined()).items():
        found |= names_of_class(name, thing) if inspect.isclass(thing) else {name: parameters(thing)}
    return dict(sorted((found | commands()).items()))


def exported(package):
    found = {}
    for node in ast.walk(ast.parse(inspect.getsource(package))):
        if isinstance(node, ast.ImportFrom) and node.level:
            module = importlib.import_module("." * node.level + (node.module or ""), package.__name__)
            found |= {alias.asname or alias.name: getattr(module, alias.name, None) for alias in node.names}
    return {name: thing for name, thing in found.items() if is_public(name) and not inspect.ismodule(thing)}


def defined():
    found = {}
    for name in MODULES:
        module = importlib.import_module(f"accelerate.{name}")
        found |= {name: thing for name, thing in vars(module).items() if is_public(name) and is_accelerates(thing)}
    return found


def is_public(name):
    return not name.startswith("_")


def is_accelerates(thing):
    return (inspect.isclass(thing) or inspect.isfunction(thing)) and thing.__module__.startswith("accelerate.")


def parameters(function):
    try:
        signature = inspect.signature(function)
    except TypeError:  # a constant
        return []
    return [name for name, parameter in signature.parameters.items() if name != "self" and is_public(name) and parameter.kind not in VARIADIC]


def names_of_class(name, thing):
    if issubclass(thing, enum.Enum):
        return {name: []} | {f"{name}.{member}": [] for member in thing.__members__}
    bases = [base for base in thing.__mro__ if base.__module__.startswith("accelerate.")]
    arguments = parameters(thing) if any("__init__" in vars(base) for base in bases) else []
    members = {}
    for base in reversed(bases):
        source = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        members |= {member: [] for member in assigned_attributes(source) if member not in arguments}
        members |= {member: method_parameters(source, member, value) for member, value in vars(base).items() if is_public(member) and is_member(member, value, arguments)}
    return {name: arguments} | {f"{name}.{member}": values for member, values in members.items()}


def is_member(name, value, arguments):
    """Not the default of a dataclass's field."""
    return name not in arguments or inspect.isroutine(value) or isinstance(value, property)


def assigned_attributes(source):
    """The public attributes that methods of a class assign to self."""
    assigned = {node.attr for node in ast.walk(source)
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name) and node.value.id == "self"}  # fmt: skip
    return sorted(filter(is_public, assigned))


def method_parameters(source, name, value):
    """Read from the source, because decorators hide the signature."""
    found = [node.args for node in source.body if isinstance(node, ast.FunctionDef) and node.name == name]
    if not found or isinstance(value, property):
        return []
    return [argument.arg for argument in found[0].posonlyargs + found[0].args + found[0].kwonlyargs if argument.arg not in ("self", "cls") and is_public(argument.arg)]


def commands():
    main = argparse.ArgumentParser()
    subparsers = main.add_subparsers()
    for name, add in vars(accelerate_cli).items():
        if name.endswith("_parser"):
            add(subparsers=subparsers)
    return flags("accelerate", main)


def flags(command, parser):
    found, here = {}, []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, of_command in action.choices.items():
                found |= flags(f"{command} {name}", of_command)
        elif not isinstance(action, argparse._HelpAction):
            long = [option for option in action.option_strings if option.startswith("--")]
            here.append((long or action.option_strings or [action.dest])[0].replace("-", "_").replace("__", "--", 1))
    return {command: here} | found


def record():
    with open(RECORDED, "w") as file:
        file.write("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(values)}" for name, values in names().items()) + "\n}\n")


if __name__ == "__main__":
    record()
