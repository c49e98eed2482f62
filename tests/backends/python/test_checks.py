"""`--check NAME=LEVEL`: what a check finds ends the run, is printed at its end, or is ignored."""

import json

import pytest
from conftest import HAS_RACE, PROGRAMS, results_of, simulate, simulate_text, skip_unless_torch_can, warnings_of

MISTAKES = PROGRAMS / "mistakes.py"
PARTING = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
sgd = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    model(torch.ones(1, 2)).sum().backward()
    with torch.no_grad():
        model.module.weight.grad += dist.get_rank()
    sgd.step()
    sgd.zero_grad()
print("result", dist.get_rank(), model.module.weight.tolist(), flush=True)
"""
RACING = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
tensor = torch.ones(4)
work = dist.all_reduce(tensor, async_op=True)
before = tensor + 1
work.wait()
print("result", dist.get_rank(), tensor.tolist(), flush=True)
"""


@pytest.mark.parametrize("check, text", [("replicas", PARTING), ("races", RACING)])
def test_an_error_may_become_a_finding_or_nothing(check, text, tmp_path):
    ended = simulate_text(tmp_path, 2, text)
    assert ended.code == 3 and f"[{check}]" in ended.error, ended.error
    told = simulate_text(tmp_path, 2, text, "--check", f"{check}=finding")
    assert told.code == 0 and told.error.count(f"[{check}]") == told.error.count("warning") > 0, told.error
    silent = simulate_text(tmp_path, 2, text, "--check", f"{check}=off")
    assert silent.code == 0 and "warning" not in silent.error, silent.error
    assert results_of(told.output) == results_of(silent.output) and len(results_of(told.output)) == 2


@pytest.mark.parametrize("check, program", [("sampler_epochs", (MISTAKES, "forgets_set_epoch")),
                                            ("divided_weights", (MISTAKES, "draws_another_model")),
                                            ("torch_races", (PROGRAMS / "trainings.py", "pipeline"))])
def test_a_finding_may_become_an_error_or_nothing(check, program):
    if check == "torch_races" and not HAS_RACE:
        pytest.skip("this version of torch has no such race")
    skip_unless_torch_can(program[1])
    assert f"[{check}]" in simulate(4, *program).error
    ended = simulate(4, *program, options=["--check", f"{check}=error"])
    assert ended.code == 3 and f"[{check}]" in ended.error, ended.error
    silent = simulate(4, *program, options=["--check", f"{check}=off"])
    assert silent.code == 0 and not warnings_of(silent), silent.error


def test_several_checks_and_the_diagnosis(tmp_path):
    file = tmp_path / "diagnosis.json"
    options = ["--check", "races=finding", "--check", "replicas=off", "--diagnosis", str(file)]
    run = simulate_text(tmp_path, 2, RACING + PARTING.replace('dist.init_process_group("gloo")', ""), *options)
    assert run.code == 0, run.error
    assert "[races]" in json.loads(file.read_text())["text"] and "[replicas]" not in run.error


def test_a_name_or_level_that_does_not_exist():
    run = simulate(2, MISTAKES, "forgets_set_epoch", options=["--check", "race=off", "--check", "races=warn,calls=off"])
    assert run.code == 2
    for text in ("unknown check 'race'; expected one of: calls, replicas", "got 'races=warn'", "calls: is always an error"):
        assert text in run.error, run.error


@pytest.mark.ranks(2, check=["replicas=off", "races=off"])
def test_levels_in_a_mark():
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo")
    tensor = torch.ones(2)
    work = dist.all_reduce(tensor, async_op=True)
    _ = tensor + 1
    work.wait()
    assert tensor.tolist() == [2, 2]
