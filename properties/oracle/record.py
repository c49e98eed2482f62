"""Records Accelerate's answers, for the tests that run without Python. Run it with the Python of `./dev test --oracle`.

recorded/plans.jsonl            {"request", "expected"}: plan requests of 1 to 4 ranks, the answers of plan.py
recorded/random_numbers.jsonl   {"ranks", "request", "expected"}: per rank the kinds of random_numbers.PORTABLE
recorded/schedules.jsonl        {"request", "expected"}: requests and answers of schedule_values.py; needs transformers
recorded/optimizers.jsonl       {"request", "expected"}: runs of optimizers in float64, the answers of optimizer_runs.py
recorded/float8.jsonl           {"request", "expected"}: a layer in float8 by torchao, forward and backward; answers of float8.py
recorded/pipeline_runs.jsonl {"request", "expected"}: trainings of pipelines, the answers of pipeline_runs.py
recorded/context_parallel.jsonl {"request", "expected"}: attention over a divided sequence, the answers of context_parallel.py
recorded/accelerate_names.json  {name: parameters}: the public names of Accelerate, by accelerate_names.py
recorded/hooks.jsonl            {"request", "expected"}: calls of hooks of random modules, the answers of hooks.py
recorded/pipelines.jsonl        {"request", "expected"}: tables of torch's pipeline schedules, the answers of pipelines.py
recorded/metrics.jsonl          {"request", "expected"}: metrics of random samples, the answers of metric_values.py
recorded/mixtures.jsonl         {"request", "expected"}: random mixtures of experts, and the answers of mixtures.py
recorded/tokenizers.jsonl       {"request", "expected"}: tokenizers, texts and ids, and the answers of tokenizer_files.py
recorded/faults.jsonl           {"fault", "expected"}: what each rank saw of the known faults of faults.py
"""
import collections
import json
import os
import random

import accelerate_names
import context_parallel
import faults
import float8
import hooks
import metric_values
import mixtures
import optimizer_runs
import pipeline_runs
import pipelines
import plan
import plan_requests
import random_numbers
import rank_group
import schedule_values
import tokenizer_files

HERE = os.path.dirname(os.path.abspath(__file__))
SEED = 20261121
PLANS = 600
SCHEDULES, SCHEDULES_OF_ONE_NAME = 300, 10


def write(name, lines, sources="accelerate 1.15.0 and torch 2.11.0"):
    with open(os.path.join(HERE, "recorded", name), "w") as file:
        file.write(json.dumps({"recorded": f"by properties/oracle/record.py from {sources}"}) + "\n")
        file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)


def without_defaults(request):
    return {key: value for key, value in request.items() if key not in plan.DEFAULTS or value != plan.DEFAULTS[key]}


def record_plans():
    rng = random.Random(SEED)
    requests = []
    while len(requests) < PLANS:
        request = plan_requests.random_request(rng)
        if request["length"] * request["epochs"] <= 150:  # many small answers show more than a few long ones
            requests.append(request)
    answers = plan.answers(requests)
    assert not any("failure" in answer for answer in answers), [answer for answer in answers if "failure" in answer]
    asked = map(without_defaults, requests)
    write("plans.jsonl", ({"request": request, "expected": answer} for request, answer in zip(asked, answers)))


def record_random_numbers():
    requests = [
        {"seed": seed, "device_specific": specific, "count": 20, "use_seedable_sampler": seedable, "data_seed": data_seed}
        for seed, specific, seedable, data_seed in ((42, False, False, None), (7, True, False, None), (2147483659, True, True, 5))
    ]
    lines = []
    for ranks in (1, 3, 4):
        for request, answer in zip(requests, rank_group.walk(random_numbers.__file__, ranks, requests)):
            expected = [{name: of_rank[name] for name in random_numbers.PORTABLE} for of_rank in answer]
            lines.append({"ranks": ranks, "request": request, "expected": expected})
    write("random_numbers.jsonl", lines)


def record_schedules():
    rng = random.Random(SEED)
    requests, counts = [], collections.Counter()
    while len(requests) < SCHEDULES:
        request = schedule_values.random_request(rng)
        scheduler = request["scheduler"]
        name = scheduler.get("type", scheduler["name"])
        if counts[name] < SCHEDULES_OF_ONE_NAME:
            counts[name] += 1
            requests.append(request)
    lines = ({"request": request, "expected": schedule_values.answer(request)} for request in requests)
    write("schedules.jsonl", lines, "torch 2.11.0 and transformers 5.23.0")


def record_optimizers():
    rng = random.Random(SEED)
    lines = []
    for name in [*optimizer_runs.OPTIMIZERS, optimizer_runs.LBFGS]:
        for _ in range(4):
            request = optimizer_runs.random_request(rng, name, shapes=((1,), (3,), (2, 9)), dtypes=["float64"])
            request |= {"steps": 30 if request["start"] is None else request["start"]["step"]}
            lines.append({"request": request, "expected": optimizer_runs.run(request)})
    write("optimizers.jsonl", lines)


def record_float8():
    rng = random.Random(SEED)
    lines = []
    while len(lines) < 40:
        request = float8.random_request(rng)
        if request["config"].get("recipe_name") == "rowwise_with_gw_hp" and request["autocast"]:
            continue  # torchao multiplies bfloat16 by float32 here, which no CPU supports
        lines.append({"request": request, "expected": float8.answer(request)})
    write("float8.jsonl", lines, "torch 2.11.0 and torchao 0.18.0")


def record_context_parallel():
    rng = random.Random(SEED)
    lines = []
    for ranks in context_parallel.RANKS:
        requests = [context_parallel.random_request(rng, ranks) for _ in range(4)]
        small = {"batch": 1, "heads": ranks, "length": 4 * ranks, "width": 3}
        requests = [request | small for request in requests]
        answers = rank_group.walk(context_parallel.__file__, ranks, requests)
        lines += [{"request": request, "expected": answer} for request, answer in zip(requests, answers)]
    write("context_parallel.jsonl", lines, "torch 2.11.0")


def record_pipeline_runs():
    rng = random.Random(SEED)
    lines = []
    for ranks in pipeline_runs.RANKS:
        requests = [pipeline_runs.random_request(rng, ranks) | {"width": 3} for _ in range(12)]
        answers = rank_group.walk(pipeline_runs.__file__, ranks, requests)
        lines += [{"request": request, "expected": answer} for request, answer in zip(requests, answers)]
    write("pipeline_runs.jsonl", lines, "torch 2.11.0")


def record_hooks():
    rng = random.Random(SEED)
    requests = [hooks.random_request(rng) for _ in range(40)]
    write("hooks.jsonl", ({"request": request, "expected": hooks.answer(request)} for request in requests))


def record_pipelines():
    rng = random.Random(SEED)
    lines, of_schedule = [], dict.fromkeys(pipelines.SCHEDULES, 0)
    while min(of_schedule.values()) < 3:
        request = pipelines.random_request(rng)
        if of_schedule[request["schedule"]] < 3 and request["micro_batches"] * request["stages"] < 80:
            of_schedule[request["schedule"]] += 1
            lines.append({"request": request, "expected": pipelines.answer(request)})
    write("pipelines.jsonl", lines, "torch 2.11.0")


def record_mixtures():
    rng = random.Random(1)
    requests = [mixtures.random_request(rng, 12) | {"top_k": top_k} for top_k in (2, 2, 3, 3, 4, 12)]  # 1 to 4 ranks divide 12
    write("mixtures.jsonl", [{"request": request, "expected": mixtures.answer(request)} for request in requests], "transformers 5.23.0 and torch 2.11.0")


def record_metrics():
    rng = random.Random(SEED)
    requests = [metric_values.random_request(rng) for _ in range(300)]
    lines = [{"request": request, "expected": metric_values.value(request)} for request in requests]
    write("metrics.jsonl", lines, "scikit-learn 1.9.1 and torchmetrics 1.9.0")


def record_tokenizers():
    rng = random.Random(SEED)
    lines, patterns = [], set()
    while len(lines) < 8:
        request = tokenizer_files.random_request(rng)
        pattern = json.dumps(json.loads(request["file"])["pre_tokenizer"])
        if len(request["file"]) < 25000 and pattern not in patterns:
            patterns.add(pattern)
            lines.append({"request": request, "expected": tokenizer_files.answer(request)})
    write("tokenizers.jsonl", lines, "tokenizers 0.23.3")


def record_faults():
    write("faults.jsonl", ({"fault": name, "expected": answer} for name, answer in faults.answers().items()))


if __name__ == "__main__":
    record_plans()
    record_random_numbers()
    record_schedules()
    record_optimizers()
    record_float8()
    record_context_parallel()
    record_pipeline_runs()
    record_hooks()
    record_pipelines()
    record_metrics()
    record_mixtures()
    record_tokenizers()
    record_faults()
    accelerate_names.record()
