"""Configuration files, exchanged with accel. accel reads what Python's Accelerate writes and writes it again, with equal values and the
same bytes; Accelerate reads what accel writes from flags; the variables of a launched program and `to-fsdp2` are the same.

The keys are those of Accelerate's own launcher, so that a key that accel does not know is found.
"""
import copy
import json
import logging
import os
import re
import subprocess
from unittest import mock

import yaml
from accelerate.commands import launch, to_fsdp2
from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file
from accelerate.utils import launch as launchers

TEXTS = ["a", "no", "Null", "~", "1e8", "1:30", "0x1f", "012", "2020-01-01", "=", "- a", "-a", "?", ": ", "a: b", "a #b", "a#b", "%x", "@", "'", '"', "it's", " a", "a ",
         "a\nb", "a\tb", "é\U0001f600", "\\ud83d", "[a]", "{a", "*a", "&a", "!a", "|", ">", "---", "...", ".inf", "+1", "1_000", "<<", "on", ".5", "5.", "10.0.0.1", "~/hostfile",
         "a:", ":a", "None", "C:\\x", "x" * 200, "7" * 70, "word " * 40 + "end"]  # fmt: skip
CHOICES = {
    "fsdp_version": [1, 2],
    "fsdp_sharding_strategy": ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2", 2, "3"],
    "fsdp_reshard_after_forward": [True, False, "FULL_SHARD"],
    "fsdp_auto_wrap_policy": ["TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"],
    "fsdp_backward_prefetch": ["BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"],
    "fsdp_state_dict_type": ["FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT"],
    "zero_stage": [0, 1, 2, 3],
    "offload_optimizer_device": ["none", "cpu", "nvme"],
    "offload_param_device": ["none", "cpu", "nvme"],
    "gradient_clipping": [1.0, 0.5, 1e-8, "auto"],
    "gradient_accumulation_steps": [1, 7, "auto"],
    "deepspeed_multinode_launcher": ["pdsh", "standard", "slurm"],
    "parallelism_config_cp_backend": ["torch"],
    "parallelism_config_cp_comm_strategy": ["allgather", "alltoall"],
    "parallelism_config_sp_backend": ["deepspeed"],
    "dynamo_backend": ["INDUCTOR", "EAGER", "no"],
    "dynamo_mode": ["default", "reduce-overhead", "max-autotune"],
    "fp8_backend": ["AO", "TE", "MSAMP"],
    "fp8_format": ["HYBRID", "E4M3", "E5M2"],
    "fp8_amax_compute_algo": ["max", "most_recent"],
    "fp8_opt_level": ["O1", "O2"],
    "fp8_override_linear_precision": [[True, False, True], [False, False, False]],
}
# Variables of a launched program, without a rank's number and threads, which each launcher sets in its own way.
PREFIXES = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_", "MEGATRON_LM_", "CUDA_VISIBLE_DEVICES")
# reports/differences.md: Accelerate loses these.
OURS_ALONE = ("ACCELERATE_USE_CPU", "ACCELERATE_CPU_AFFINITY", "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH", "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH")


def section_of(action, group):
    if group == "DeepSpeed Arguments":
        return "deepspeed_config"
    for prefix, section in {"fsdp_": "fsdp_config", "fp8_": "fp8_config", "megatron_lm_": "megatron_lm_config", "parallelism_config_": "parallelism_config", "dynamo_": "dynamo_config",
                            "mpirun_": "mpirun_config"}.items():  # fmt: skip
        if action.dest.startswith(prefix):
            return section
    return None


def keys_of_sections():
    """{section: {key: action}}, from Accelerate's launcher."""
    parser = launch.launch_command_parser()
    sections = {}
    for group in parser._action_groups:
        for action in group._group_actions:
            section = section_of(action, group.title)
            if section:
                sections.setdefault(section, {})[action.dest] = action
    return sections


def random_value(rng, action):
    if action.dest in CHOICES:
        return rng.choice(CHOICES[action.dest])
    is_flag = action.type is bool or action.nargs == 0 or isinstance(action.default, bool) or action.default in ("true", "false")
    if is_flag or re.search(r"Decides Whether|true or false|`true`|Enable|Disable", action.help or "", re.IGNORECASE) and action.type is str:
        return rng.random() < 0.5
    if action.type is int:
        return rng.randrange(1, 10**9)
    return rng.choice([0.0, 0.25, 1e-8, 3.0]) if action.type is float else rng.choice(TEXTS)


def random_config(rng, sections):
    fields = {"distributed_type": rng.choice(["NO", "MULTI_CPU", "MULTI_GPU", "FSDP", "DEEPSPEED", "XLA", "MEGATRON_LM", "MULTI_XPU"])}
    optional = {
        "mixed_precision": lambda: rng.choice(["no", "fp16", "bf16", "fp8", None]),
        "num_processes": lambda: rng.choice([-1, 1, 2, 64]),
        "machine_rank": lambda: rng.randrange(4),
        "num_machines": lambda: rng.randrange(1, 9),
        "main_process_port": lambda: rng.choice([None, 0, 29500, 65535]),
        "downcast_bf16": lambda: rng.choice([True, False, "no", "yes"]),
    }
    for name in ("gpu_ids", "main_process_ip", "rdzv_backend", "main_training_function", "tpu_name", "tpu_zone", "command_file"):
        optional[name] = lambda: rng.choice(TEXTS)
    for name in ("use_cpu", "debug", "same_network", "enable_cpu_affinity", "tpu_use_cluster", "tpu_use_sudo"):
        optional[name] = lambda: rng.random() < 0.5
    for name in ("commands", "tpu_vm", "tpu_env"):
        optional[name] = lambda: [rng.choice(TEXTS) for _ in range(rng.randrange(3))]
    for section, keys in sections.items():
        optional[section] = lambda keys=keys: {key: random_value(rng, action) for key, action in keys.items() if rng.random() < 0.3}
    fields.update({name: value() for name, value in optional.items() if rng.random() < 0.6})
    return {name: value for name, value in fields.items() if value is not None and value != {}}


def write(fields, path):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(fields, file) if path.endswith(".json") else yaml.safe_dump(fields, file)


def loaded(path):
    return load_config_from_file(path).to_dict()


def text_of(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def rewritten(path):
    """What Python writes after reading the file."""
    config, again = load_config_from_file(path), path + (".again.json" if path.endswith(".json") else ".again.yaml")
    (config.to_json_file if path.endswith(".json") else config.to_yaml_file)(again)
    return text_of(again)


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
    return done.stdout, None if done.returncode == 0 else f"exit {done.returncode}: {done.stderr.strip()[-500:]}"


def first_difference(left, right):
    if left == right:
        return None
    return next(f"{key}: {left.get(key)!r} and {right.get(key)!r}" for key in sorted(left.keys() | right.keys()) if left.get(key) != right.get(key) or (key in left) != (key in right))


def is_folded(value):
    """PyYAML folds lines of more than 80 letters and writes a text of several lines on several lines; accel does neither."""
    if isinstance(value, str):
        return len(value) > 60 or "\n" in value
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return any(is_folded(item) for item in items)


def without_short_names(rng, fields):
    """Removes the section's prefix from some keys, as files may do."""
    fields = copy.deepcopy(fields)
    for section, prefix in (("fsdp_config", "fsdp_"), ("fp8_config", "fp8_"), ("dynamo_config", "dynamo_")):
        if section in fields and rng.random() < 0.3:
            # Accelerate takes "fp8..." and "fsdp..." as complete, so these two stay.
            fields[section] = {key if key in ("fp8_format", "dynamo_backend") else key.removeprefix(prefix): value for key, value in fields[section].items()}
    return fields


# --- the comparisons ---------------------------------------------------------------------------------------------------


def update(accel, fields, path, given):
    write(given, path)
    write(fields, path + ".full.yaml")
    _, why = run([accel, "config", "update", "--config_file", path])
    if why:
        return why
    there = loaded(path + ".full.yaml")
    return first_difference(there, loaded(path)) or (None if is_folded(fields) or text_of(path) == rewritten(path) else f"bytes: {rewritten(path)!r} and {text_of(path)!r}")


def flag_text(value):
    return json.dumps(value) if isinstance(value, (bool, list)) else str(value)


def by_flags(accel, fields, path):
    """The values without empty texts, which a flag cannot hold. Types are kept, since they belong to the keys."""
    flags = {}
    for name, value in fields.items():
        flags.update(value if isinstance(value, dict) else {name: value} if not isinstance(value, list) else {})
    _, why = run([accel, "config", "--config_file", path] + [f"--{name}={flag_text(value)}" for name, value in flags.items()])
    if why:
        return why
    found = loaded(path)
    for section in [name for name, value in found.items() if isinstance(value, dict)]:
        found.update(found.pop(section))
    return first_difference({name: str(value) for name, value in flags.items()}, {name: str(value) for name, value in found.items() if name in flags})


def their_variables(path):
    """What Accelerate's launcher sets for a program, in addition to this process's variables."""
    args = launch.launch_command_parser().parse_args(["--config_file", path, "program.py"])
    with mock.patch.dict(os.environ, {}), mock.patch.object(launchers, "is_port_in_use", return_value=False):
        for name in list(os.environ):
            if name.startswith(PREFIXES):
                del os.environ[name]
        args, defaults, mixed_precision_of_file = launch._validate_launch_command(args)
        if args.use_deepspeed:
            fields = list(defaults.deepspeed_config) + (["mixed_precision"] if mixed_precision_of_file else [])
            args.deepspeed_fields_from_accelerate_config = ",".join(fields)
            _, variables = launchers.prepare_deepspeed_cmd_env(args)
        elif args.use_fsdp or args.use_megatron_lm or args.multi_gpu:
            variables = launchers.prepare_multi_gpu_env(args)
        else:
            _, variables = launchers.prepare_simple_launcher_cmd_env(args)
    return {name: value for name, value in variables.items() if name.startswith(PREFIXES)}


def our_variables(accel, path):
    text, why = run(["bash", "-c", f'set -o pipefail; env -i bash -c "$({accel} env --variables --config_file {path}); env -0" | tr "\\0" "\\n"'])
    variables = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    return {name: value for name, value in variables.items() if name.startswith(PREFIXES)}, why


def variables(accel, fields, path):
    write(fields, path)
    ours, why = our_variables(accel, path)
    if why:
        return why
    theirs = {name: value for name, value in their_variables(path).items() if value != "None" or name in ours}
    lost = [name for name in ours if name in OURS_ALONE or (name.startswith("ACCELERATE_DYNAMO") and fields["distributed_type"] == "DEEPSPEED")]
    for name in lost:
        if name not in theirs:
            ours.pop(name)
    if fields["distributed_type"] == "FSDP" and str(ours.get("FSDP_RESHARD_AFTER_FORWARD")).upper() == ours["FSDP_SHARDING_STRATEGY"]:
        theirs["FSDP_SHARDING_STRATEGY"] = ours["FSDP_SHARDING_STRATEGY"]
    return first_difference(theirs, ours)


def launchable(rng, fields, sections):
    """A configuration that Accelerate's launcher accepts on this machine."""
    kept = {name: fields[name] for name in ("debug", "use_cpu", "enable_cpu_affinity", "dynamo_config") if name in fields}
    kept["distributed_type"] = rng.choice(["NO", "MULTI_CPU", "MULTI_GPU", "FSDP", "DEEPSPEED", "MEGATRON_LM"])
    kept["num_processes"] = 2
    kept["gpu_ids"] = rng.choice(["all", "0,1"])
    for name in ("fsdp_config", "deepspeed_config", "megatron_lm_config"):
        kept[name] = {key: random_value(rng, action) for key, action in sections[name].items() if rng.random() < 0.4 and action.dest not in ("fsdp_sync_module_states",)}
        kept[name] = {key: value for key, value in kept[name].items() if not (isinstance(value, str) and "\n" in value)}
    if kept["distributed_type"] in ("FSDP", "DEEPSPEED") and rng.random() < 0.5:
        kept["parallelism_config"] = {"parallelism_config_tp_size": rng.randrange(1, 4), "parallelism_config_cp_size": rng.randrange(1, 4), "parallelism_config_sp_size": rng.randrange(1, 3)}
    if rng.random() < 0.7:
        kept["mixed_precision"] = rng.choice(["no", "bf16", "fp16"])
    return {name: value for name, value in kept.items() if value != {}}


def fsdp2(accel, fields, path):
    fields = {name: value for name, value in fields.items() if name != "fsdp_config"} | {"fsdp_config": fields.get("fsdp_config", {}) | {"fsdp_own_key": 1}}
    write(fields, path)
    _, why = run([accel, "to-fsdp2", "--config_file", path, "--output_file", path + ".ours.yaml"])
    if why:
        return why
    with open(path) as file:
        theirs = to_fsdp2.convert_config_to_fsdp2(yaml.safe_load(file))
    with open(path + ".ours.yaml") as file:
        return first_difference(theirs, yaml.safe_load(file))


def comparisons(rng, folder, count, accel):
    """(what, difference) for `count` configurations."""
    logging.getLogger(to_fsdp2.__name__).setLevel(logging.ERROR)  # it warns of keys that it leaves out
    sections = keys_of_sections()
    for number in range(count):
        fields = random_config(rng, sections)
        path = os.path.join(folder, f"{number}." + rng.choice(["yaml", "json"]))
        given = without_short_names(rng, fields)
        yield f"config update of {json.dumps(given)}", update(accel, fields, path, given)
        plain = {name: value for name, value in fields.items() if name not in ("num_machines", "machine_rank", "tpu_use_cluster", "downcast_bf16")}
        plain |= {"distributed_type": rng.choice(["NO", "MULTI_CPU", "FSDP", "DEEPSPEED", "MEGATRON_LM"]), "mixed_precision": rng.choice(["no", "fp16", "bf16"]), "num_processes": 4}
        yield f"config with the flags of {json.dumps(plain)}", by_flags(accel, plain, os.path.join(folder, f"{number}.flags.yaml"))
        started = launchable(rng, fields, sections)
        yield f"variables of {json.dumps(started)}", variables(accel, started, os.path.join(folder, f"{number}.launch.yaml"))
        yield f"to-fsdp2 of {json.dumps(fields)}", fsdp2(accel, fields, os.path.join(folder, f"{number}.fsdp.yaml"))
