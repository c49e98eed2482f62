"""`sim-run check`: mistakes that people make, planted one by one in right programs, and the right programs themselves."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest
import simranks
from conftest import PROGRAMS, run

FOLDER = PROGRAMS / "check"


def check(program, *options, **more):
    """The results by name, and the exit code."""
    done = run([simranks.sim_run(), "check", "--json", *options, "--", sys.executable, program], seconds=600, **more)
    assert done.output, done.error
    summary = json.loads(done.output.splitlines()[-1])
    assert (summary["verdict"] == "fail") == (done.code == 1), done.error
    return {result["name"]: result for result in summary["checks"]}, done.code


@dataclass
class Mistake:
    program: str
    name: str
    edits: list  # [old, new] of the program's text
    check: str  # that finds it
    text: str  # a part of the cause
    verdict: str = "fail"
    line: str = ""  # a part of the line of the program that the cause names; "": none


ALL = "model, opt, train, test, sched = accelerator.prepare(model, opt, train, test, sched)"
MISTAKES = [
    # classification under Accelerate
    Mistake("classifier", "loader_not_prepared", [[ALL, ALL.replace("train, ", "")]], "samples", "every rank reads all 200 samples",
            line="train = DataLoader"),
    Mistake("classifier", "gather_for_metrics_forgotten", [["gather_for_metrics", "gather"]], "metrics", "use gather_for_metrics",
            line="accelerator.gather("),
    # Some of the rows are printed: that drops no samples that were counted twice.
    Mistake("classifier", "gathered_rows_are_shown", [["gather_for_metrics", "gather"], ["correct +=", "str(pred[:3]); correct +="]],
            "metrics", "use gather_for_metrics", line="accelerator.gather("),
    Mistake("classifier", "schedule_of_one_ranks_part",
            [[ALL, "model, opt, train, test = accelerator.prepare(model, opt, train, test); sched = accelerator.prepare("
              "torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.1, total_iters=len(train) * 2))"]],
            "world_size", "the schedule steps too often"),
    Mistake("classifier", "schedule_stepped_by_every_rank", [["sched.step()", "[sched.step() for _ in range(accelerator.num_processes)]"]],
            "world_size", "the schedule steps too often"),
    Mistake("classifier", "accumulated_loss_not_divided",
            [["accelerator.backward(loss)", "loss.backward()"], ["for a, b in train:", "for i, (a, b) in enumerate(train):"],
             ["opt.step(); sched.step(); opt.zero_grad()", "(i % 2 == 1) and (opt.step(), sched.step(), opt.zero_grad())"]],
            "world_size", "divide each loss by 2"),
    Mistake("classifier", "loss_divided_by_ranks", [["accelerator.backward(loss)", "accelerator.backward(loss / accelerator.num_processes)"]],
            "world_size", "1/4 of it"),
    Mistake("classifier", "every_rank_writes", [["if accelerator.is_main_process:", "if True:"]], "files", "write model.pt",
            line="torch.save"),
    Mistake("classifier", "every_rank_prints", [["accelerator.print(", "print("]], "files", "print 'epoch", "finding", line="print("),
    Mistake("classifier", "not_seeded", [["    set_seed(1)\n", ""]], "deterministic", "not seeded"),
    Mistake("classifier", "seeded_by_time", [["set_seed(1)", "import time; set_seed(int(time.time() * 1e6) % 100000)"]], "deterministic", "seed"),
    Mistake("classifier", "a_rank_breaks",
            [["            loss = torch", "            if accelerator.process_index == 2 and epoch == 1: break\n            loss = torch"]],
            "calls", "calls differ"),
    Mistake("classifier", "evaluation_on_the_main_process",
            [["        model.eval(); correct = 0; total = 0\n",
              "        model.eval(); correct = 0; total = 0\n        if not accelerator.is_main_process: continue\n"],
             ["pred, b = accelerator.gather_for_metrics((pred, b))", "pass"],
             ["model(a).argmax", "accelerator.unwrap_model(model)(a).argmax"]],
            "metrics", "only 1 of them evaluate"),
    # a language model under DistributedDataParallel
    Mistake("language_model", "set_epoch_forgotten", [["        sampler.set_epoch(epoch)\n", ""]], "samples", "call set_epoch"),
    Mistake("language_model", "sampler_forgotten", [["loader = DataLoader(train, batch_size=8, sampler=sampler)",
                                                     "loader = DataLoader(train, batch_size=8, shuffle=True)"]],
            "samples", "every rank reads all 256 samples"),
    Mistake("language_model", "model_not_wrapped", [["DDP(Model())", "Model()"]], "replicas", "their gradients are not averaged"),
    Mistake("language_model", "gradients_summed",
            [["DDP(Model())", "Model()"],
             ["                nn.utils.clip", "                for p in model.parameters(): dist.all_reduce(p.grad)\n                nn.utils.clip"]],
            "world_size", "it is summed over the ranks instead of averaged"),
    Mistake("language_model", "clipped_before_the_average",
            [["DDP(Model())", "Model()"],
             ["                opt.step()", "                for p in model.parameters(): dist.all_reduce(p.grad); p.grad /= size\n"
              "                opt.step()"]],
            "world_size", "not averaged yet", line="nn.utils.clip_grad_norm_"),
    Mistake("language_model", "metric_not_reduced", [["        dist.all_reduce(sums)\n", ""]], "metrics", "nothing is gathered or reduced"),
    Mistake("language_model", "a_nan_is_skipped",
            [["            (loss / accumulation).backward()", "            if torch.isnan(loss): continue\n"
              "            (loss / accumulation).backward()"]],
            "calls", "if the loss of rank 3 is not a number"),
    Mistake("language_model", "stops_at_its_own_loss",
            [["            (loss / accumulation).backward()", "            if loss.item() < 0.01: break\n            (loss / accumulation).backward()"]],
            "calls", "if the loss of rank 3 is 0"),
    Mistake("language_model", "learning_rate_of_all_ranks", [["lr=3e-3", "lr=3e-3 * size"]], "world_size",
            "the learning rate follows the number of ranks", "finding"),
    # a GAN with two optimizers
    Mistake("gan", "critic_not_prepared", [["generator, critic, opt_g, opt_c, loader = accelerator.prepare(generator, critic, opt_g, opt_c, loader)",
                                            "generator, opt_g, opt_c, loader = accelerator.prepare(generator, opt_g, opt_c, loader)"]],
            "replicas", "optimizer 0: the parameters of rank 1 differ"),
    Mistake("gan", "equal_noise_on_all_ranks", [["    set_seed(5, device_specific=True)\n", ""]], "random_streams",
            "all ranks draw the same random numbers", "finding"),
    # saved and resumed
    Mistake("resuming", "optimizer_forgotten", [['        opt.load_state_dict(state["opt"])\n', ""]], "resume", "the optimizer begins with another state"),
    Mistake("resuming", "schedule_forgotten", [['        sched.load_state_dict(state["sched"])\n', ""]], "resume", "the schedule has made"),
    Mistake("resuming", "position_forgotten", [['epoch, done = state["epoch"], state["done"]', 'epoch = state["epoch"]']], "resume",
            "the epoch, or the position in it"),
    Mistake("resuming", "random_state_forgotten", [['        torch.set_rng_state(state["rng"][rank])\n', ""]], "resume",
            "the random state is not restored"),
    Mistake("resuming", "model_forgotten", [['        model.module.load_state_dict(state["model"])\n', ""]], "resume",
            "it begins with parameters that it did not have"),
    Mistake("resuming", "written_in_place", [['"state.tmp")\n                    os.replace("state.tmp", "state.pt")', '"state.pt")']], "crash",
            "the next start fails"),
    # images with augmentations in workers
    Mistake("images", "workers_seeded_alike", [["num_workers=2)", "num_workers=2, worker_init_fn=lambda number: torch.manual_seed(0))"]],
            "samples", "draw the same random numbers of torch"),
    Mistake("images", "norm_not_synchronised", [], "world_size", "batch norm uses the batch of each rank alone", "finding"),
    Mistake("images", "a_parameter_unused_on_one_rank",
            [["                loss = nn", "                if accelerator.process_index == 1: model.module[0].bias.requires_grad_(False)\n                loss = nn"]],
            "runs", "rank"),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_is_found(tmp_path, mistake):
    text = (FOLDER / f"{mistake.program}.py").read_text()
    for old, new in mistake.edits:
        assert text.count(old) >= 1, f"{old} is not in {mistake.program}"
        text = text.replace(old, new)
    program = tmp_path / "train.py"
    program.write_text(text)
    results, _ = check(program, "--quick", "--only", mistake.check)
    result = results[mistake.check]
    assert result["verdict"] == mistake.verdict, result
    assert mistake.text in result["text"], result
    if mistake.line:
        number = int(result["where"].removesuffix(" (2)").rpartition(":")[2])
        assert mistake.line in text.splitlines()[number - 1], result


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.py")))
def test_a_right_program_has_no_failure(name):
    results, code = check(FOLDER / f"{name}.py", "--quick", "--skip", "scaling")
    assert code == 0, [result for result in results.values() if result["verdict"] == "fail"]
    assert results["runs"]["verdict"] == "pass"


def test_local_sgd_and_a_metric_that_is_cut_by_hand_are_right():
    results, code = check(FOLDER / "local_sgd.py", "--quick", "--only", "replicas,metrics,world_size")
    assert code == 0, results
    assert results["replicas"]["verdict"] == "finding" and "agree at the end" in results["replicas"]["text"]
    assert results["metrics"]["verdict"] == "pass"
    assert results["world_size"]["verdict"] == "not_applicable"


def test_a_program_works_in_a_folder_of_its_own(tmp_path):
    check(FOLDER / "classifier.py", "--only", "runs,files", "--quick")
    assert not (Path.cwd() / "model.pt").exists()
    done = run([simranks.sim_run(), "check", "--only", "runs", "--", sys.executable, "-c", "open('here').write('')"], seconds=60)
    assert done.code in (0, 1)


def test_wrong_usage_is_refused_with_all_problems():
    done = run([simranks.sim_run(), "check", "--only", "sample", "--skip", "x", "--ranks", "0"])
    assert done.code == 2
    for part in ("unknown check 'sample'", "unknown check 'x'", "--ranks", "expected an experiment file"):
        assert part in done.error


def test_the_results_are_junit_xml(tmp_path):
    check(FOLDER / "gan.py", "--quick", "--only", "runs,metrics", "--junit", tmp_path / "results.xml")
    suite = ElementTree.parse(tmp_path / "results.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("2", "0", "1")
    assert [case.get("name") for case in suite] == ["runs", "metrics"]


def test_the_predicted_scaling_names_the_largest_cost():
    results, code = check(FOLDER / "classifier.py", "--quick", "--only", "scaling")
    assert code == 0
    assert "25 Gb/s Ethernet" in results["scaling"]["text"] and "efficiency" in results["scaling"]["text"]
