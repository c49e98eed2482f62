"""The names that exist: those of Accelerate as recorded, and ours from the public headers and from the programs' help.

A name is `function`, `Class`, `Class.member`, `function(parameter)`, `Class(parameter)` or `accelerate command --flag`.
"""
import json
import re
import subprocess

import cpp_headers

RECORDED = "properties/oracle/recorded/accelerate_names.json"
HEADERS = ["reference/public/accel/all.hpp", "reference/public/accel/models.hpp", "reference/public/accel/sync_batch_norm.hpp"]
COMMANDS = ["", "config", "config default", "config update", "env", "estimate-memory", "launch", "merge-weights", "test", "to-fsdp2"]
LAUNCH_KEYS = "reference/config/launch/launch_sections.cpp"
COMMAND_SECONDS = 60
SOURCES = ["reference/accelerator", "reference/config", "reference/parallel", "reference/tracking"]  # they check the values of options
OPTIONS = ("Options", "Kwargs", "Search")  # the ends of names of structs of options


def of_accelerate(root):
    """All names, in the order of the record, with their parameters after them."""
    return expanded(json.loads((root / RECORDED).read_text()))


def expanded(recorded):
    return [full for name, parameters in recorded.items() for full in [name, *(with_parameter(name, parameter) for parameter in parameters)]]


def with_parameter(name, parameter):
    return f"{name} {parameter}" if name.startswith("accelerate") else f"{name}({parameter})"


def owner_of(name):
    """The name that a parameter, a flag or a member belongs to; None for other names."""
    for pattern in (r"(.+)\(\w+\)", r"(accelerate.*) .+", r"(\w+)\.\w+"):
        if match := re.fullmatch(pattern, name):
            return match[1]
    return None


def of_headers(headers):
    """The fields of a struct of options that a function accepts count as its parameters."""
    found = set(headers.aliases) | set(headers.enums) | set(headers.classes)
    found |= {f"{enum}.{screaming(member)}" for enum, members in headers.enums.items() for member in members}
    for name in headers.classes:
        members = headers.members(name)
        found |= {f"{name}.{field}" for field in members.fields} | {f"{name}({field})" for field in members.fields}
        for function, overloads in members.functions.items():
            found |= of_function(headers, name if function == name.split("::")[-1] else f"{name}.{function}", overloads)
    for function, overloads in headers.free.functions.items():
        found |= of_function(headers, function, overloads)
    return found


def of_function(headers, name, overloads):
    parameters = {parameter for function in overloads for parameter in function.parameters}
    for function in overloads:
        for accepted in function.types:
            if accepted.endswith(OPTIONS):
                parameters |= set(headers.struct(accepted, function.scope))
    return {name} | {f"{name}({parameter})" for parameter in parameters}


def screaming(enumerator):
    """MULTI_CPU for kMultiCpu."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", enumerator.removeprefix("k")).upper()


def of_programs(root, folder):
    """`accelerate launch --cpu` for each flag in the help of `accel launch` that has an effect."""
    found = set()
    for command in COMMANDS:
        arguments = [folder / "accel", *command.split(), "--help"]
        text = subprocess.run(arguments, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=True).stdout
        found |= of_help(f"accelerate {command}".strip(), text)
    return found - {f"accelerate launch --{key}" for key in keys_without_effect((root / LAUNCH_KEYS).read_text())}


def keys_without_effect(source):
    """The keys of a configuration file, which are flags too, that are accepted with a warning or refused."""
    return {name for name, rest in re.findall(r'Key\("(\w+)"((?:(?!Key\().)*)', source, re.DOTALL) if ".unused(" in rest or ".refused(" in rest or "Unsupported" in rest}


def of_help(command, text):
    flags = {flag.replace("-", "_").replace("__", "--", 1) for flag in re.findall(r"--[a-z][\w-]*", text)}
    return {command} | {f"{command} {word}" for word in flags | set(re.findall(r"\b[A-Z]{4,}\b", text))}


def ours(root, programs):
    return of_headers(cpp_headers.Headers(root, HEADERS)) | of_programs(root, programs)


def literals(root):
    """The strings in the sources that check options."""
    paths = [path for folder in SOURCES for path in sorted((root / folder).iterdir()) if path.suffix in (".hpp", ".cpp")]
    return {literal for path in paths for literal in re.findall(r'"([^"\\]*)"', path.read_text())}
