"""Compares launchers: torchrun, Accelerate's and ours start the same binary, whose ranks must end with the same parameters; and the
same flags must give the same variables under Accelerate's launcher and ours.
"""
import os
import subprocess
import sys

RANKS = 4
SECONDS = 120

# Flags, which may be combined freely, and other flags that they need; values as spelled in the documentation.
FSDP = [["--fsdp_version", "2"], ["--fsdp_sharding_strategy", "SHARD_GRAD_OP"], ["--fsdp_offload_params", "true"], ["--fsdp_min_num_params", "1000"],
        ["--fsdp_auto_wrap_policy", "SIZE_BASED_WRAP"], ["--fsdp_backward_prefetch", "BACKWARD_POST"], ["--fsdp_state_dict_type", "FULL_STATE_DICT"],
        ["--fsdp_use_orig_params", "false"], ["--fsdp_activation_checkpointing", "true"], ["--fsdp_transformer_layer_cls_to_wrap", "Block,Head"]]
GENERAL = [["--mixed_precision", "bf16"], ["--num_cpu_threads_per_process", "3"], ["--debug"]]
PREFIXES = ("ACCELERATE_", "FSDP_", "OMP_NUM_THREADS", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def accelerate(flags, command):
    return [sys.executable, "-m", "accelerate.commands.launch", *flags, "--num_machines", "1", "--dynamo_backend", "no", "--main_process_port", "0", "--no_python", *command]


def output_of(command, folder, variables=None):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(PREFIXES)}
    environment |= {"HF_HOME": folder, "OMP_NUM_THREADS": "1"} | (variables or {})
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: exit {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout


def parameters(bin_folder, folder):
    """The final parameters of the four ranks, by the name of the launcher."""
    found = {}
    program = os.path.join(bin_folder, "launched_training")
    torchrun = os.path.join(os.path.dirname(sys.executable), "torchrun")
    ours = [os.path.join(bin_folder, "accel"), "launch", "--cpu", "--num_processes", str(RANKS), "--no_prefix", "--main_process_port", "0", "--num_cpu_threads_per_process", "1"]
    commands = {"accel launch": lambda job: [*ours, program, job],
                "accel launch --sim": lambda job: [os.path.join(bin_folder, "accel"), "launch", "--sim", "--num_processes", str(RANKS), program, job],
                "torchrun": lambda job: [torchrun, "--standalone", "--no-python", "--nproc-per-node", str(RANKS), program, job],
                "accelerate launch": lambda job: accelerate(["--multi_gpu", "--mixed_precision", "no", "--num_processes", str(RANKS)], [program, job])}
    for name, command in commands.items():
        job = os.path.join(folder, name.replace(" ", "_"))
        os.makedirs(job)
        found[name] = output_of(command(job), folder).strip().splitlines()[-1]
    return found


def variables_of(text):
    """The variables that launchers set, except those that only Python's compiler reads."""
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line)
    return {name: value for name, value in pairs if name.startswith(PREFIXES) and "DYNAMO" not in name}


def compare_variables(bin_folder, folder, flags):
    theirs = variables_of(output_of(accelerate([*flags, "--num_processes", "1"], ["/usr/bin/env"]), folder))
    ours = variables_of(output_of([os.path.join(bin_folder, "accel"), "launch", *flags, "--num_processes", "1", "/usr/bin/env"], folder))
    ours_alone = {"ACCELERATE_USE_CPU"}  # Accelerate's launcher for several ranks leaves it out
    ranks = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}  # a single process has no rank here
    different = [name for name in sorted(theirs.keys() | ours.keys()) if theirs.get(name) != ours.get(name) and name not in ours_alone | ranks]
    return ", ".join(f"{name}: {theirs.get(name)} and {ours.get(name)}" for name in different) or None


def comparisons(rng, folder, count, bin_folder):
    """(what, difference or None) for each comparison."""
    found = parameters(bin_folder, folder)
    for name, hashed in found.items():
        same = hashed.startswith("parameters ") and hashed == found["accel launch"]
        yield f"four ranks by {name}", None if same else f"{hashed} and {found['accel launch']}"
    for _ in range(count):
        flags = [word for pair in GENERAL if rng.random() < 0.4 for word in pair]
        if "--mixed_precision" not in flags:
            flags += ["--mixed_precision", "no"]
        if rng.random() < 0.7:
            flags += ["--use_fsdp"] + [word for pair in FSDP if rng.random() < 0.4 for word in pair]
        yield f"variables of {' '.join(flags)}", compare_variables(bin_folder, folder, flags)
