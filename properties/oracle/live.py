"""Compares accel with Hugging Face Accelerate, live: traces, plans, random numbers, learning-rate schedules, and optimizers with
their state dicts must be equal in every field; the operators that optimizers call must have kernels on GPUs; and the known faults
must still be as recorded.

usage: live.py --bin FOLDER [--seed N] [--experiments N] [--requests N]     everything; `./dev test --oracle` does this
       live.py --bin FOLDER --experiment FILE [--ranks N]                   one trace
       live.py --bin FOLDER --sharding N [--seed N] [--ranks N]             N random sharded experiments
       live.py --bin FOLDER --request JSON                                  one plan
       live.py --bin FOLDER --numbers JSON [--ranks N]                      one set of random numbers
       live.py --bin FOLDER --schedule JSON                                 one learning-rate schedule
       live.py --bin FOLDER --optimizer JSON                                one run of an optimizer
       live.py --bin FOLDER --ddp JSON [--ranks N]                          one training under DDP's options or local SGD
       live.py --bin FOLDER --context JSON [--ranks N]                      one attention over a divided sequence
       live.py --bin FOLDER --files N [--seed N]                            N rounds of checkpoint files
       live.py --bin FOLDER --distributed-checkpoints N [--seed N --ranks N]   N folders of torch.distributed.checkpoint per side
       live.py --bin FOLDER --states N [--seed N --ranks N]                 N trainings begun by one side, finished by the other
       live.py --bin FOLDER --event-files N [--seed N]                      N runs logged for TensorBoard
       live.py --bin FOLDER --configs N [--seed N]                          N configuration files, read and written by both
       live.py --bin FOLDER --launchers N [--seed N]                        ranks by four launchers, N sets of their flags
       live.py --bin FOLDER --device-maps N [--seed N]                      N random device maps
       live.py --bin FOLDER --hooks N [--seed N]                            N random sequences of calls of hooked modules
       live.py --bin FOLDER --hooked JSON                                   one of them
       live.py --bin FOLDER --pipelines N [--seed N]                        N random tables of pipeline schedules
       live.py --bin FOLDER --pipeline-run JSON --ranks N                   one training of a pipeline
       live.py --bin FOLDER --models N [--seed N]                           N random Llamas, and ResNets
       live.py --bin FOLDER --mixtures N [--seed N]                         N random mixtures of experts
       live.py --bin FOLDER --parallel-layers N [--seed N --ranks N]        N layers divided by tensor parallelism
       live.py --bin FOLDER --parallel-layer JSON --ranks N                 one of them
       live.py --bin FOLDER --tokenizers N [--seed N]                       N random tokenizers, and all code points
       live.py --bin FOLDER --metrics N [--seed N]                          N metrics of random samples
       live.py --bin FOLDER --faults                                        the known faults
       live.py --bin FOLDER --names                                         the public names of Accelerate
Without --seed and ACCEL_ORACLE_SEED the seed is drawn at the start. It is printed with the command that repeats the comparisons. The
last line is "N passed, N failed"; exit 1 if any failed. All comparisons are written to junit-oracle.xml in the folder ACCEL_ARTIFACTS, if set.

An error of one side alone is a difference, and so are two errors that differ. Traces may end in errors that have the same text, in the
same step and on the same ranks; plans and schedules in errors of the same class, schedules in the same step. Requests of all other kinds
are such that both sides accept them, so any error is a difference, except for the known fault of Accelerate's device maps.
"""
import argparse
import functools
import glob
import json
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor

import torch
import yaml

import accelerate_names
import compare
import configs
import context_parallel
import ddp_requests
import device_maps
import distributed
import experiments
import faults
import files
import hooks
import launchers
import metric_values
import mixtures
import models
import optimizer_runs
import optimizers
import parallel_layers
import pipeline_runs
import pipelines
import plan
import plan_requests
import rank_group
import schedule_values
import states
import tokenizer_files

HERE = os.path.dirname(os.path.abspath(__file__))
FIXED_EXPERIMENTS = os.path.join(HERE, "../../tests/programs/experiments/*.yaml")
BACKENDS = ("gloo", "sim")
RUN_SECONDS = 300
TIME_OUT = "still running"
SHOWN_FAILURES = 20
BY_DEV = ["--bin", "build/release/bin"]  # the arguments that `./dev test --oracle` gives
STATE_RANKS = (1, 2)  # with more ranks, buckets, which Accelerate does not save, change the order of sums


class Report:
    """Counts comparisons; a failure is reported with the command that repeats it."""

    def __init__(self, arguments):
        self.passed = self.failed = 0
        self._suite = ElementTree.Element("testsuite", name="oracle")
        self._command = [sys.executable, os.path.relpath(__file__), "--bin", arguments.bin]
        self._lock = threading.Lock()

    def add(self, what, difference, again, sides="Accelerate and accel"):
        with self._lock:
            case = ElementTree.SubElement(self._suite, "testcase", name=xml_text(what))
            if difference is None:
                self.passed += 1
                return
            self.failed += 1
            ElementTree.SubElement(case, "failure", message=xml_text(f"{sides}: {difference}"))
            if self.failed <= SHOWN_FAILURES:
                print(f"FAILED {what} ({sides}): {difference}", flush=True)
                print(f"       again: {shlex.join(self._command + again)}", flush=True)

    def write_junit(self, path):
        self._suite.set("tests", str(self.passed + self.failed))
        self._suite.set("failures", str(self.failed))
        ElementTree.ElementTree(self._suite).write(path, encoding="utf-8", xml_declaration=True)


def xml_text(value):
    """Without the characters that XML cannot contain."""
    return re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", str(value))


def ended(command, stdout=subprocess.DEVNULL, folder=None):
    """The exit code of a command, or None after RUN_SECONDS, and its standard error."""
    options = {"stdin": subprocess.DEVNULL, "stdout": stdout, "stderr": subprocess.PIPE, "text": True, "cwd": folder}
    try:
        done = subprocess.run(command, timeout=RUN_SECONDS, **options)
    except subprocess.TimeoutExpired:
        return None, f"{TIME_OUT} after {RUN_SECONDS} s"
    return done.returncode, done.stderr


def run(command, stdout=subprocess.DEVNULL, folder=None):
    """The reason why a command failed; None if it did not."""
    code, errors = ended(command, stdout, folder)
    if code == 0:
        return None
    lines = [line for line in errors.strip().splitlines() if "frame #" not in line]  # of the backtraces of LibTorch's errors
    return f"{shlex.join(command)}: " + ("" if code is None else f"exit {code}: ") + "\n".join(lines)[-500:]


def read_lines(path):
    with open(path) as file:
        return [json.loads(line) for line in file]


def write_lines(path, lines):
    with open(path, "w") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


# --- traces ----------------------------------------------------------------------------------------------------------


def compare_traces(report, arguments, files, ranks):
    answers = rank_group.walk(os.path.join(HERE, "train.py"), ranks, [{"file": file} for file in files], is_launched=True)
    num_errors = 0
    for file, answer in zip(files, answers):
        num_errors += any(isinstance(of_rank, dict) for of_rank in answer)
        bounds = bounds_of(file, ranks)
        for backend in BACKENDS:
            difference = difference_of_trace(arguments, answer, file, ranks, backend, bounds)
            what = f"trace of {os.path.relpath(file)}, {ranks} ranks, {backend}"
            report.add(what, difference, ["--experiment", os.path.relpath(file), "--ranks", str(ranks)])
    say(f"compared {len(files)} experiments on {ranks} ranks, of which {num_errors} end in an error of Accelerate")


def bounds_of(file, ranks):
    """How far losses may differ from Accelerate's."""
    with open(file) as text:
        experiment = yaml.safe_load(text)
    accelerator = experiment.get("accelerator") or {}
    plugin = accelerator.get("fsdp_plugin")
    # Ours is FSDP1, whose NO_SHARD is DDP. The last elements of a fused kernel depend on the sharding: with use_orig_params, on a parameter's part.
    is_fused = optimizers.OPTIMIZERS[experiment["optimizer"]["name"]][1] is optimizers.FUSED
    is_ours = plugin and plugin.get("fsdp_version", 1) == 1 and plugin.get("sharding_strategy") != "NO_SHARD" and (plugin.get("use_orig_params") or not is_fused)
    precision = accelerator.get("mixed_precision", "no")
    if not plugin or ranks == 1 or is_ours:
        return {"bound": 0}
    # Accelerate's NO_SHARD casts parameters unit by unit; ours is DDP under autocast, where e.g. an embedding stays in float32: 8.8e-6.
    is_cast_otherwise = precision != "no" and plugin.get("sharding_strategy") == "NO_SHARD"
    return {"bound": compare.BOUNDS[precision], "bound_of_first": 1e-3 if is_cast_otherwise else 0}


def difference_of_trace(arguments, answer, file, ranks, backend, bounds):
    def traced(max_steps):
        limit = [] if max_steps is None else ["--max-steps", str(max_steps)]
        with tempfile.TemporaryDirectory() as folder:
            trace = os.path.join(folder, "trace.jsonl")
            sim_run = os.path.join(arguments.bin, "sim-run")
            code, errors = ended([sim_run, "--backend", backend, "--ranks", str(ranks), *limit, "--trace", trace, file])
            if code == 0:
                return {"trace": read_lines(trace), "errors": {}}
            return {"trace": None, "errors": compare.errors_of_output(errors, ranks)}

    # The launcher of Gloo processes stops the other ranks when one has failed.
    return compare.difference_of_runs(answer, traced, stops_others=backend == "gloo", **bounds)


# --- plans -----------------------------------------------------------------------------------------------------------


def compare_plans(report, arguments, requests):
    simulated, of_gloo = our_plans(arguments, requests), plans_of_gloo(arguments, requests)
    for request, theirs, *both in zip(requests, plan.answers(requests), simulated, of_gloo, strict=True):
        compared = plan.DEFAULTS | request
        text = json.dumps(request)
        for backend, ours in zip(("sim", "gloo"), both, strict=True):
            report.add(f"plan, {backend}", compare.difference_of_plans(compared, theirs, ours), ["--request", text])
    say(f"compared {len(requests)} plans on simulated ranks and on Gloo processes")


def our_plans(arguments, requests):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "requests.jsonl")
        write_lines(path, requests)
        with open(os.path.join(folder, "answers.jsonl"), "w+") as output:
            why = run([os.path.join(arguments.bin, "sim-run"), "plan", "--requests", path], stdout=output)
            output.seek(0)
            answers = [json.loads(line) for line in output]
    return one_for_each(requests, answers, why)


def plans_of_gloo(arguments, requests):
    """One job of Gloo processes for each number of ranks; rank 0 writes what all ranks read."""
    answers = [None] * len(requests)
    for ranks in sorted({request["ranks"] for request in requests}):
        mine = [index for index, request in enumerate(requests) if request["ranks"] == ranks]
        of_ranks = answers_of_ranks(arguments, "plans", [requests[index] for index in mine], ranks, "gloo")
        for index, answer in zip(mine, of_ranks, strict=True):
            answers[index] = answer[0] if isinstance(answer, list) else answer
    return answers


# --- answers ---------------------------------------------------------------------------------------------------------


def attempt(answer, request):
    """Python's answer, or the error in which it ended."""
    try:
        return answer(request)
    except Exception as error:
        return {"error": type(error).__name__, "message": str(error)}


def difference_of(their, our, difference):
    """For requests that both sides accept: any error is a difference."""
    return compare.unexpected_error(their, our) or difference(their, our)


def answers_of(arguments, kind, requests):
    """The answers of `oracle-answers KIND` in one process; a failure for each line that it does not write."""
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = os.path.join(folder, "requests.jsonl"), os.path.join(folder, "answers.jsonl")
        write_lines(asked, requests)
        why = run([os.path.join(arguments.bin, "oracle-answers"), kind, asked, answered])
        answers = read_lines(answered) if os.path.exists(answered) else []
    return one_for_each(requests, answers, why)


def one_for_each(requests, answers, why):
    """An answer or a failure for each request. If the program failed, the reason is reported even if no line is missing."""
    answers = answers[: len(requests) - bool(why)]
    return answers + [{"failure": why or "too few lines were written"}] * (len(requests) - len(answers))


def answers_of_ranks(arguments, kind, requests, ranks, backend):
    """For each request, what all ranks of `oracle-answers KIND` answered, or {"failure": why}. A request that fails ends the job of all
    requests, so each half is asked again."""
    with tempfile.TemporaryDirectory() as folder:
        asked = os.path.join(folder, "requests.jsonl")
        write_lines(asked, requests)
        sim_run, oracle_answers = (os.path.abspath(os.path.join(arguments.bin, name)) for name in ("sim-run", "oracle-answers"))
        failure = run([sim_run, "--ranks", str(ranks), "--backend", backend, "--", oracle_answers, kind, asked, folder])
        if failure is None:
            return list(map(list, zip(*(read_lines(f"{folder}/rank{rank}.jsonl") for rank in range(ranks)), strict=True)))
    if len(requests) < 2 or TIME_OUT in failure:
        return [{"failure": failure}] * len(requests)
    middle = len(requests) // 2
    halves = (requests[:middle], requests[middle:])
    return [answer for half in halves for answer in answers_of_ranks(arguments, kind, half, ranks, backend)]


# --- random numbers --------------------------------------------------------------------------------------------------


def compare_numbers(report, arguments, requests, ranks):
    theirs = list(rank_group.walk(os.path.join(HERE, "random_numbers.py"), ranks, requests))
    for backend in BACKENDS:
        ours = answers_of_ranks(arguments, "random-numbers", requests, ranks, backend)
        for request, their, our in zip(requests, theirs, ours, strict=True):
            difference = difference_of(their, our, compare.difference_of_numbers)
            again = ["--numbers", json.dumps(request), "--ranks", str(ranks)]
            report.add(f"random numbers, {ranks} ranks, {backend}", difference, again)
    say(f"compared {len(requests)} sets of random numbers on {ranks} ranks")


def random_number_requests(rng):
    def request(device_specific, use_seedable_sampler):
        # If seeds differ between ranks, Accelerate's seedable sampler has another order on each, unless it has its own seed.
        own_seed = use_seedable_sampler and (device_specific or rng.random() < 0.5)
        return {
            "seed": rng.randrange(1 << rng.choice([4, 16, 31])),
            "device_specific": device_specific,
            "count": rng.choice([1, 15, 16, 17, 40, 100]),
            "use_seedable_sampler": use_seedable_sampler,
            "data_seed": rng.randrange(1000) if own_seed else None,
        }

    return [request(specific, seedable) for specific in (False, True) for seedable in (False, True) for _ in range(2)]


# --- schedules -------------------------------------------------------------------------------------------------------


def compare_schedules(report, arguments, requests):
    """Each schedule from its start, and resumed from Python's state. The hashes contain every bit of every rate."""
    theirs = [schedule_values.answer(request) for request in requests]
    ours = answers_of(arguments, "schedules", [request | {"load": answer.get("state")} for request, answer in zip(requests, theirs)])
    for request, their, our in zip(requests, theirs, ours, strict=True):
        report.add("schedule", compare.difference_of_schedules(their, our), ["--schedule", json.dumps(request)], sides="Python and accel")
    say(f"compared {len(requests)} schedules, of which {sum('error' in their for their in theirs)} end in an error of Python")


# --- optimizers ------------------------------------------------------------------------------------------------------

RESUMED_STEPS = 9


def compare_optimizers(report, arguments, requests):
    """Each optimizer from its start, and from the state dict of the other side."""
    theirs, ours = [attempt(optimizer_runs.run, request) for request in requests], answers_of(arguments, "optimizer-runs", requests)
    exact = [index for index, request in enumerate(requests) if compare.error_of(theirs[index]) is None and is_resumed_exactly(request)]
    from_theirs = answers_of(arguments, "optimizer-runs", [going_on(requests[index], theirs[index]) for index in exact])
    for index, request in enumerate(requests):
        report_run(report, request, "run", theirs[index], ours[index])
    for index, our in zip(exact, from_theirs, strict=True):
        request = requests[index]
        report_run(report, request, "run from Python's state dict", attempt(optimizer_runs.run, going_on(request, theirs[index])), our)
        if "failure" in ours[index]:
            continue  # reported above
        whole = attempt(optimizer_runs.run, dict(request, steps=request["steps"] + RESUMED_STEPS))
        report_run(report, request, "Python's run from our state dict", whole, attempt(optimizer_runs.run, going_on(request, ours[index])))
    say(f"compared {len(requests)} runs of optimizers")


def is_resumed_exactly(request):
    return request["dtype"] == "float32" or name_of(request) not in (optimizer_runs.LBFGS, *optimizer_runs.CASTS_SCALARS)


def check_gpu_kernels(report, arguments, requests):
    """On a GPU, an operator over lists of tensors takes a few kernels if torch has an implementation for GPUs, and one for each tensor
    otherwise. The dispatcher of a torch built for GPUs knows this without a GPU. LibTorch's own optimizers use single tensors, and so do
    Python's SINGLE_TENSOR."""
    requests = [request for request in requests if name_of(request) not in (optimizer_runs.LBFGS, "sgd", *optimizers.SINGLE_TENSOR)]
    for request, operators in zip(requests, answers_of(arguments, "optimizer-operators", requests), strict=True):
        problem = operators["failure"] if isinstance(operators, dict) else problem_on_gpus(operators, num_parameters=sum(len(group["shapes"]) for group in request["groups"]))
        report.add(f"{name_of(request)}, kernels of a step on GPUs", problem, ["--optimizer", json.dumps(request)], sides="torch and accel")
    say(f"looked at the kernels of {len(requests)} optimizers' steps")


def problem_on_gpus(operators, num_parameters):
    over_lists = {name for name in operators if name.startswith(("aten::_foreach_", "aten::_fused_"))}
    for_each = [name for name in sorted(set(operators) - over_lists) if operators.count(name) >= num_parameters]
    if not over_lists or for_each:
        return f"called for each parameter: {for_each or 'all'}"
    without = [name for name in sorted(over_lists) if not has_gpu_kernel(name)]
    return f"no kernel on GPUs: {without}" if without else None


def has_gpu_kernel(operator):
    try:
        return torch._C._dispatch_has_kernel_for_dispatch_key(operator, "CUDA")
    except RuntimeError:  # torch does not know the operator
        return False


def name_of(request):
    return request["groups"][0]["optimizer"]["name"]


def going_on(request, answer):
    return optimizer_runs.resumed(request, answer, request["steps"] + RESUMED_STEPS)


def report_run(report, request, what, their, our):
    difference = difference_of(their, our, optimizer_runs.difference)
    report.add(f"{name_of(request)}, {what}", difference, ["--optimizer", json.dumps(request)])


# --- options of DDP, local SGD ---------------------------------------------------------------------------------------


def compare_trainings(report, arguments, requests, ranks):
    theirs = list(rank_group.walk(os.path.join(HERE, "ddp_training.py"), ranks, requests))
    for backend in BACKENDS:
        ours = answers_of_ranks(arguments, "ddp-trainings", requests, ranks, backend)
        for request, their, our in zip(requests, theirs, ours, strict=True):
            text, difference = json.dumps(request), difference_of(their, our, compare.difference_of_trainings)
            report.add(f"training with {text}, {ranks} ranks, {backend}", difference, ["--ddp", text, "--ranks", str(ranks)])
    say(f"compared {len(requests)} trainings under options of DDP on {ranks} ranks")


# --- context parallelism ---------------------------------------------------------------------------------------------


def compare_on_ranks(report, arguments, module, kind, requests, ranks, name_of, option, what):
    """Compares the answers of all ranks: `module` answers in Python, and oracle-answers to `kind` in C++."""
    theirs = list(rank_group.walk(module.__file__, ranks, requests))
    for backend in BACKENDS:
        ours = answers_of_ranks(arguments, kind, requests, ranks, backend)
        for request, their, our in zip(requests, theirs, ours, strict=True):
            text, difference = json.dumps(request), difference_of(their, our, module.difference)
            report.add(f"{name_of(request)}, {ranks} ranks, {backend}", difference, [option, text, "--ranks", str(ranks)], sides="torch and accel")
    say(f"compared {len(requests)} {what} on {ranks} ranks")


def compare_context_parallel(report, arguments, requests, ranks):
    compare_on_ranks(
        report, arguments, context_parallel, "context-parallel", requests, ranks, lambda request: request["function"], "--context", "attentions over a divided sequence"
    )


# --- pipelines -------------------------------------------------------------------------------------------------------


def compare_pipeline_runs(report, arguments, requests, ranks):
    compare_on_ranks(
        report, arguments, pipeline_runs, "pipeline-runs", requests, ranks, lambda request: f"pipeline {request['schedule']}", "--pipeline-run", "trainings of pipelines"
    )


# --- checkpoint files ------------------------------------------------------------------------------------------------


def compare_files(report, arguments, rng, rounds):
    with tempfile.TemporaryDirectory() as folder:
        compared = list(files.comparisons(rng, folder, rounds))
        answers = answers_of(arguments, "checkpoint-files", [request for _, request, _ in compared])
        for (what, request, check), answer in zip(compared, answers, strict=True):
            report.add(f"{what}, {json.dumps(request)}", check(answer), ["--files", str(rounds), "--seed", str(arguments.seed)])
    say(f"compared {len(compared)} exchanges of checkpoint files")


def compare_distributed(report, arguments, rng, count, ranks):
    def merge(words):
        result = subprocess.run([os.path.join(arguments.bin, "accel"), "merge-weights", *words], capture_output=True, text=True)
        return result.stderr.strip() if result.returncode else None

    def by_accel(requests):
        return answers_of(arguments, "checkpoint-files", requests)

    def train(requests, ranks):
        return answers_of_ranks(arguments, "checkpoints", requests, ranks, "sim")

    again = ["--distributed-checkpoints", str(count), "--seed", str(arguments.seed), "--ranks", str(ranks)]
    with tempfile.TemporaryDirectory() as folder:
        compared = list(distributed.comparisons(rng, folder, count, ranks, by_accel, merge))
        compared += distributed.trainings(rng, folder, count, ranks, train)
    for what, problem in compared:
        report.add(f"distributed checkpoint, {what}", problem, again)
    say(f"compared {len(compared)} reads of distributed checkpoints, on {ranks} ranks and others")


def compare_device_maps(report, arguments, rng, count):
    requests = [device_maps.random_request(rng) for _ in range(count)]
    theirs = [attempt(device_maps.answer, request) for request in requests]
    ours = answers_of(arguments, "device-maps", requests)
    for their, our in zip(theirs, ours, strict=True):
        report.add("device map", difference_of(their, our, device_maps.difference), ["--device-maps", str(count), "--seed", str(arguments.seed)])
    say(f"compared {count} device maps, of which Accelerate failed on {sum(their.get('map') is None for their in theirs)}")


def compare_hooks(report, arguments, requests):
    theirs = [attempt(hooks.answer, request) for request in requests]
    for request, their, our in zip(requests, theirs, answers_of(arguments, "hooks", requests), strict=True):
        report.add("hooks of modules", difference_of(their, our, hooks.difference), ["--hooked", json.dumps(request)])
    say(f"compared {len(requests)} hooked models, {sum(len(their.get('events', ())) for their in theirs)} calls of hooks")


def compare_pipelines(report, arguments, rng, count):
    requests = [pipelines.random_request(rng) for _ in range(count)]
    theirs = [attempt(pipelines.answer, request) for request in requests]
    for their, our in zip(theirs, answers_of(arguments, "pipelines", requests), strict=True):
        report.add("pipeline schedule", difference_of(their, our, pipelines.difference), ["--pipelines", str(count), "--seed", str(arguments.seed)])
    say(f"compared {count} tables of pipeline schedules")


def compare_models(report, arguments, rng, count):
    with tempfile.TemporaryDirectory() as folder:
        requests = models.random_requests(rng, folder, count)
        theirs = [attempt(models.answer, request) for request in requests]
        ours = answers_of(arguments, "models", requests)
        for request, their, our in zip(requests, theirs, ours, strict=True):
            text, difference = json.dumps(request), difference_of(their, our, models.difference)
            report.add(f"model {text}", difference, ["--models", str(count), "--seed", str(arguments.seed)], sides="Python and accel")
    say(f"compared {len(requests)} models of torchvision and transformers")


def compare_mixtures(report, arguments, rng, count):
    for ranks in mixtures.RANKS:
        requests = mixtures.random_requests(rng, ranks, count)
        ours = answers_of_ranks(arguments, "mixtures", requests, ranks, "gloo")
        again = ["--mixtures", str(count), "--seed", str(arguments.seed)]
        for request, of_ranks in zip(requests, ours, strict=True):
            problem = difference_of(attempt(mixtures.answer, request), of_ranks, mixtures.difference)
            report.add(f"mixture of experts at {ranks} ranks", problem, again, sides="transformers and accel")
    say(f"compared {count} mixtures of experts on each number of ranks")


def compare_parallel_layers(report, arguments, requests, ranks):
    theirs = list(rank_group.walk(os.path.join(HERE, "parallel_layers.py"), ranks, requests))
    for backend in BACKENDS:
        ours = answers_of_ranks(arguments, "parallel-layers", requests, ranks, backend)
        for request, their, our in zip(requests, theirs, ours, strict=True):
            difference = difference_of(their, our, parallel_layers.difference)
            again = ["--parallel-layer", json.dumps(request), "--ranks", str(ranks)]
            report.add(f"divided {request['layer']}, {ranks} ranks, {backend}", difference, again, sides="torch and accel")
    say(f"compared {len(requests)} divided layers on {ranks} ranks")


def compare_random_parallel_layers(report, arguments, rng, count):
    for ranks in [arguments.ranks] if arguments.ranks else parallel_layers.RANKS:
        compare_parallel_layers(report, arguments, [parallel_layers.random_request(rng, ranks) for _ in range(count)], ranks)


def compare_tokenizers(report, arguments, rng, count):
    requests = [tokenizer_files.request_of_all_characters(), *(tokenizer_files.random_request(rng) for _ in range(count))]
    theirs = [attempt(tokenizer_files.answer, request) for request in requests]
    for their, our in zip(theirs, answers_of(arguments, "tokenizers", requests), strict=True):
        difference = difference_of(their, our, tokenizer_files.difference)
        report.add("tokenizer", difference, ["--tokenizers", str(count), "--seed", str(arguments.seed)], sides="tokenizers and accel")
    say(f"compared {count} tokenizers, and all code points")


def compare_metrics(report, arguments, rng, count):
    requests = [metric_values.random_request(rng) for _ in range(count)]
    theirs = [attempt(metric_values.answer, request) for request in requests]
    for request, their, our in zip(requests, theirs, answers_of(arguments, "metrics", requests), strict=True):
        difference = difference_of(their, our, metric_values.difference)
        again = ["--metrics", str(count), "--seed", str(arguments.seed)]
        report.add(f"metric {request['metric']}", difference, again, sides="scikit-learn and accel")
    say(f"compared {count} metrics")


def compare_states(report, arguments, rng, count, ranks):
    requests = [states.random_request(rng) for _ in range(count)]
    for backend in BACKENDS:
        with tempfile.TemporaryDirectory() as folder:
            uncut, begun, theirs_resumed = states.parts(requests, folder, "theirs")
            _, ours_begun, ours_resumed = states.parts(requests, folder, "ours")
            first = states.by_accelerate(uncut + begun, ranks)
            uncut, begun = first[:count], first[count:]
            ours = answers_of_ranks(arguments, "checkpoints", ours_begun + theirs_resumed, ranks, backend)
            ours_begun, theirs_resumed = ours[:count], ours[count:]
            ours_resumed = states.by_accelerate(ours_resumed, ranks)
        again = ["--states", str(count), "--seed", str(arguments.seed), "--ranks", str(ranks)]
        for number, request in enumerate(requests):
            what = f"{ranks} ranks, {backend}, {json.dumps(request)}"
            there, here = (uncut[number], begun[number], theirs_resumed[number]), (uncut[number], ours_begun[number], ours_resumed[number])
            report.add(f"Accelerate's checkpoint goes on in accel, {what}", states.difference(*there), again)
            report.add(f"accel's checkpoint goes on in Accelerate, {what}", states.difference(*here), again)
    say(f"compared {4 * count} trainings that one side began and the other ended, on {ranks} ranks")


def compare_event_files(report, arguments, runs):
    script = [sys.executable, os.path.join(HERE, "tracking.py"), "--bin", arguments.bin, "--runs", str(runs), "--seed", str(arguments.seed)]
    report.add(f"{runs} runs of TensorBoard's event files", run(script), ["--event-files", str(runs), "--seed", str(arguments.seed)])
    say(f"compared the event files of {runs} runs")


def compare_configs(report, arguments, rng, count):
    with tempfile.TemporaryDirectory() as folder:
        for what, difference in configs.comparisons(rng, folder, count, os.path.join(arguments.bin, "accel")):
            report.add(what, difference, ["--configs", str(count), "--seed", str(arguments.seed)])
    say(f"compared {count} configuration files")


def compare_launchers(report, arguments, rng, count):
    with tempfile.TemporaryDirectory() as folder:
        for what, difference in launchers.comparisons(rng, folder, count, arguments.bin):
            report.add(what, difference, ["--launchers", str(count), "--seed", str(arguments.seed)])
    say(f"compared four launchers and {count} sets of flags")


# --- known faults ----------------------------------------------------------------------------------------------------


def compare_faults(report):
    """recorded_faults_test.cpp compares the records with ours; here they are compared with Accelerate."""
    lines = read_lines(os.path.join(HERE, "recorded", "faults.jsonl"))
    recorded = {line["fault"]: line["expected"] for line in lines if "fault" in line}
    found = faults.answers()
    for name in found.keys() | recorded.keys():
        answer = found.get(name)
        difference = None if answer == recorded.get(name) else f"{answer} and {recorded.get(name)}"
        report.add(f"fault {name}", difference, ["--faults"], sides="Accelerate now and as recorded")


# --- names -----------------------------------------------------------------------------------------------------------


def compare_names(report):
    """names_test compares the record with our headers; here it is compared with Accelerate."""
    with open(accelerate_names.RECORDED) as file:
        recorded = json.load(file)
    found = accelerate_names.names()
    differing = [name for name in found.keys() | recorded.keys() if found.get(name) != recorded.get(name)]
    difference = f"record them again with accelerate_names.py: {sorted(differing)}" if differing else None
    report.add(f"{len(found)} names", difference, ["--names"], sides="Accelerate now and as recorded")


# --- everything ------------------------------------------------------------------------------------------------------


def compare_everything(report, arguments, rng):
    files = sorted(os.path.normpath(file) for file in glob.glob(FIXED_EXPERIMENTS))
    files += written(arguments, "experiments", (experiments.random_experiment(rng) for _ in range(arguments.experiments)))
    of_refused = random.Random(arguments.seed)
    files += written(arguments, "refused", (experiments.random_refused_experiment(of_refused, when) for when in experiments.REFUSED))
    requests = [plan_requests.random_request(rng) for _ in range(arguments.requests)]
    numbers = random_number_requests(rng)
    schedules = [schedule_values.random_request(rng) for _ in range(arguments.schedules)]
    runs = optimizer_runs.random_requests(rng, arguments.optimizers)
    trainings = ddp_requests.FIXED + [ddp_requests.random_request(rng) for _ in range(20)]

    if not schedule_values.schedules.has_transformers():
        say("transformers is not installed: its schedules are compared as recorded only")
    tests = [sys.executable, "-m", "unittest", "compare_test", "live_test", "plan_requests_test", "rank_group_test"]
    report.add("the scripts' own tests", run(tests, folder=HERE), [])
    say(f"{len(requests)} plan requests, {len(numbers)} sets of random numbers, {len(schedules)} schedules, {len(runs)} optimizers")
    say(f"{len(files)} experiments, {len(trainings)} trainings under options of DDP, known faults")
    jobs = [lambda: compare_plans(report, arguments, requests), lambda: compare_faults(report), lambda: compare_names(report)]
    jobs.append(lambda: compare_files(report, arguments, random.Random(arguments.seed), arguments.files or 50))
    jobs.append(lambda: compare_event_files(report, arguments, 20))
    jobs.append(lambda: compare_configs(report, arguments, random.Random(arguments.seed), 30))
    jobs.append(lambda: compare_launchers(report, arguments, random.Random(arguments.seed), 10))
    jobs.append(lambda: compare_device_maps(report, arguments, random.Random(arguments.seed), 300))
    of_hooks = random.Random(arguments.seed)
    jobs.append(lambda: compare_hooks(report, arguments, [hooks.random_request(of_hooks) for _ in range(300)]))
    jobs.append(lambda: compare_pipelines(report, arguments, random.Random(arguments.seed), 300))
    jobs.append(lambda: compare_models(report, arguments, random.Random(arguments.seed), 20))
    jobs.append(lambda: compare_mixtures(report, arguments, random.Random(arguments.seed), 25))
    jobs.append(lambda: compare_random_parallel_layers(report, arguments, random.Random(arguments.seed), 40))
    jobs.append(lambda: compare_tokenizers(report, arguments, random.Random(arguments.seed), 100))
    jobs.append(lambda: compare_metrics(report, arguments, random.Random(arguments.seed), 500))
    jobs += [functools.partial(compare_states, report, arguments, random.Random(arguments.seed), 20, ranks) for ranks in STATE_RANKS]
    jobs += [functools.partial(compare_distributed, report, arguments, random.Random(arguments.seed), 10, ranks) for ranks in distributed.RANKS]
    jobs += [lambda: compare_schedules(report, arguments, schedules), lambda: compare_optimizers(report, arguments, runs)]
    jobs.append(lambda: check_gpu_kernels(report, arguments, runs))
    for ranks in reversed(experiments.RANKS):
        jobs.append(functools.partial(compare_numbers, report, arguments, numbers, ranks))
        jobs.append(functools.partial(compare_traces, report, arguments, files, ranks))
        if ranks in ddp_requests.RANKS:
            jobs.append(functools.partial(compare_trainings, report, arguments, trainings, ranks))
    for ranks in context_parallel.RANKS:
        of_context = random.Random(arguments.seed)
        divided = [context_parallel.random_request(of_context, ranks) for _ in range(20)]
        jobs.append(functools.partial(compare_context_parallel, report, arguments, divided, ranks))
    for ranks in pipeline_runs.RANKS:
        of_runs = random.Random(arguments.seed)
        requests = [pipeline_runs.random_request(of_runs, ranks) for _ in range(20)]
        jobs.append(functools.partial(compare_pipeline_runs, report, arguments, requests, ranks))
    sharded = sharded_files(arguments, rng, num_experiments=12)
    jobs += [functools.partial(compare_traces, report, arguments, sharded, ranks) for ranks in experiments.SHARDED_RANKS]
    with ThreadPoolExecutor(2) as pool:  # so that one group of ranks computes while another starts or waits
        list(pool.map(functools.partial(do, report, arguments), jobs))


def do(report, arguments, job):
    """An exception in these scripts ends one job and not the other comparisons."""
    try:
        job()
    except Exception:
        report.add("these scripts", traceback.format_exc(), ["--seed", str(arguments.seed)])


def sharded_files(arguments, rng, num_experiments):
    return written(arguments, "sharded", (experiments.random_sharded_experiment(rng) for _ in range(num_experiments)))


def compare_sharded(report, arguments, rng):
    files = sharded_files(arguments, rng, arguments.sharding)
    for ranks in [arguments.ranks] if arguments.ranks else experiments.SHARDED_RANKS:
        compare_traces(report, arguments, files, ranks)


def written(arguments, kind, all_experiments):
    folder = os.path.join(arguments.work, f"{kind}-{arguments.seed}")
    os.makedirs(folder, exist_ok=True)
    files = []
    for number, experiment in enumerate(all_experiments):
        files.append(os.path.join(folder, f"{number:02}.yaml"))
        with open(files[-1], "w") as file:
            yaml.safe_dump(experiment, file, sort_keys=False, default_flow_style=None)
    return files


def say(text):
    print(f"[oracle] {time.strftime('%H:%M:%S')} {text}", flush=True)


def parse():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--work", default="build/oracle")
    fresh = random.SystemRandom().randrange(1 << 31)
    parser.add_argument("--seed", type=int, default=os.environ.get("ACCEL_ORACLE_SEED") or fresh)
    parser.add_argument("--experiments", type=int, default=50)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--schedules", type=int, default=500)
    parser.add_argument("--optimizers", type=int, default=12, help="runs of each")
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--experiment")
    parser.add_argument("--sharding", type=int)
    parser.add_argument("--files", type=int)
    parser.add_argument("--distributed-checkpoints", type=int)
    parser.add_argument("--states", type=int)
    parser.add_argument("--event-files", type=int)
    parser.add_argument("--configs", type=int)
    parser.add_argument("--launchers", type=int)
    parser.add_argument("--device-maps", type=int)
    parser.add_argument("--hooks", type=int)
    parser.add_argument("--hooked", type=json.loads)
    parser.add_argument("--models", type=int)
    parser.add_argument("--pipelines", type=int)
    parser.add_argument("--mixtures", type=int)
    parser.add_argument("--parallel-layers", type=int)
    parser.add_argument("--parallel-layer", type=json.loads)
    parser.add_argument("--tokenizers", type=int)
    parser.add_argument("--metrics", type=int)
    parser.add_argument("--request", type=json.loads)
    parser.add_argument("--numbers", type=json.loads)
    parser.add_argument("--schedule", type=json.loads)
    parser.add_argument("--optimizer", type=json.loads)
    parser.add_argument("--ddp", type=json.loads)
    parser.add_argument("--context", type=json.loads)
    parser.add_argument("--pipeline-run", type=json.loads)
    parser.add_argument("--faults", action="store_true")
    parser.add_argument("--names", action="store_true")
    return parser.parse_args()


def say_seed(arguments):
    say(f"seed {arguments.seed}; this repeats these comparisons: {repeating(sys.argv[1:], arguments.seed)}")


def repeating(words, seed):
    """The command that draws the same requests."""
    if words == BY_DEV:
        return f"ACCEL_ORACLE_SEED={seed} ./dev test --oracle"
    return shlex.join([sys.executable, os.path.relpath(__file__), *words, *([] if "--seed" in words else ["--seed", str(seed)])])


# Comparisons of N random items.
RANDOM = {
    "configs": compare_configs,
    "device_maps": compare_device_maps,
    "files": compare_files,
    "launchers": compare_launchers,
    "metrics": compare_metrics,
    "mixtures": compare_mixtures,
    "models": compare_models,
    "parallel_layers": compare_random_parallel_layers,
    "pipelines": compare_pipelines,
    "tokenizers": compare_tokenizers,
}


def main():
    arguments = parse()
    report = Report(arguments)
    asked = [option for option in RANDOM if getattr(arguments, option)]
    all_ranks = [arguments.ranks] if arguments.ranks else experiments.RANKS
    if arguments.experiment:
        for ranks in all_ranks:
            compare_traces(report, arguments, [arguments.experiment], ranks)
    elif arguments.sharding:
        say_seed(arguments)
        compare_sharded(report, arguments, random.Random(arguments.seed))
    elif asked:
        say_seed(arguments)
        RANDOM[asked[0]](report, arguments, random.Random(arguments.seed), getattr(arguments, asked[0]))
    elif arguments.hooks:
        say_seed(arguments)
        rng = random.Random(arguments.seed)
        compare_hooks(report, arguments, [hooks.random_request(rng) for _ in range(arguments.hooks)])
    elif arguments.hooked:
        compare_hooks(report, arguments, [arguments.hooked])
    elif arguments.event_files:
        say_seed(arguments)
        compare_event_files(report, arguments, arguments.event_files)
    elif arguments.distributed_checkpoints:
        say_seed(arguments)
        for ranks in [arguments.ranks] if arguments.ranks else distributed.RANKS:
            compare_distributed(report, arguments, random.Random(arguments.seed), arguments.distributed_checkpoints, ranks)
    elif arguments.states:
        say_seed(arguments)
        for ranks in [arguments.ranks] if arguments.ranks else STATE_RANKS:
            compare_states(report, arguments, random.Random(arguments.seed), arguments.states, ranks)
    elif arguments.request:
        compare_plans(report, arguments, [arguments.request])
    elif arguments.numbers:
        for ranks in all_ranks:
            compare_numbers(report, arguments, [arguments.numbers], ranks)
    elif arguments.schedule:
        compare_schedules(report, arguments, [arguments.schedule])
    elif arguments.optimizer:
        compare_optimizers(report, arguments, [arguments.optimizer])
        check_gpu_kernels(report, arguments, [arguments.optimizer])
    elif arguments.ddp:
        for ranks in all_ranks:
            compare_trainings(report, arguments, [arguments.ddp], ranks)
    elif arguments.parallel_layer:
        compare_parallel_layers(report, arguments, [arguments.parallel_layer], arguments.ranks)
    elif arguments.pipeline_run:
        for ranks in [arguments.ranks] if arguments.ranks else pipeline_runs.RANKS:
            compare_pipeline_runs(report, arguments, [arguments.pipeline_run], ranks)
    elif arguments.context:
        for ranks in [arguments.ranks] if arguments.ranks else context_parallel.RANKS:
            compare_context_parallel(report, arguments, [arguments.context], ranks)
    elif arguments.faults:
        compare_faults(report)
    elif arguments.names:
        compare_names(report)
    else:
        say_seed(arguments)
        compare_everything(report, arguments, random.Random(arguments.seed))
        if report.failed:
            say_seed(arguments)
    if os.environ.get("ACCEL_ARTIFACTS"):
        report.write_junit(os.path.join(os.environ["ACCEL_ARTIFACTS"], "junit-oracle.xml"))
    print(f"{report.passed} passed, {report.failed} failed")
    return 0 if report.failed == 0 and report.passed > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
