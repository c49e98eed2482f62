"""`sim-run prove` on Python programs: right ones, whose every layout is equal to one rank, and mistakes of composition, planted one
by one, which it names by tensor and collective."""

import json
import sys
from dataclasses import dataclass

import pytest
import simranks
from conftest import PROGRAMS, TORCH, run

FOLDER = PROGRAMS / "prove"


def prove(program, *options, arguments=(), ranks=4):
    """The results by layout, and the exit code."""
    done = run([simranks.sim_run(), "prove", "--json", "--ranks", ranks, *options, "--", sys.executable, program, *arguments], seconds=600)
    assert done.output, done.error
    return {result["layout"]: result for result in json.loads(done.output)}, done.code


@dataclass
class Mistake:
    program: str
    name: str
    edits: list  # [old, new] of the program's text
    tensor: str  # the kind of the first wrong one
    module: str  # or parameter
    text: str  # a part of the cause
    collective: str = ""  # a part of the collective that is responsible
    line: str = ""  # a part of the line of the program that calls it
    missing: str = ""  # or of the one that is missing


MESHES = {"megatron": "{dp_replicate: 2, tp: 2}", "experts": "{dp_replicate: 2, ep: 2}", "dtensor": "{dp_shard: 2, tp: 2}"}
DATA_AVERAGE = "        dist.all_reduce(parameter.grad, group=dp)\n"
SQUARE = 'square = sum(p.grad.square().sum() for p in model.parameters() if hasattr(p, "is_divided"))'
MISTAKES = [
    # by hand, as in Megatron-LM
    Mistake("megatron", "loss_averaged_over_all_ranks", [["dist.all_reduce(count, group=dp)", "dist.all_reduce(count)"]],
            "loss", "", "1/2 of the expected value", "all_reduce #1 of group world", "all_reduce(count)"),
    Mistake("megatron", "mean_of_means", [["    dist.all_reduce(count, group=dp)\n", ""], ["* dp_size / count", "/ count"]],
            "loss", "", "each rank averages over its own samples", missing="an all-reduce of the numbers of samples or tokens over dp"),
    Mistake("megatron", "norm_weights_not_reduced", [["in_sequence = norms | ", "in_sequence = "]],
            "stepped gradient", "blocks.0.norm1.weight", "those of tp add up to the expected one",
            missing="an all-reduce over tp of the stepped gradient of blocks.0.norm1.weight"),
    Mistake("megatron", "norm_counts_replicas_twice",
            [[SQUARE, "square = sum(p.grad.square().sum() for p in model.parameters())"],
             ["    square += sum(p.grad", "    sum(p.grad"]],
            "stepped gradient", "tokens.weight", "clipped by another norm", "of group tp", "dist.all_reduce(square"),
    Mistake("megatron", "row_layer_without_reduction", [["ReduceScatter.apply(self.product(part))", "own(self.product(part), 1)"]],
            "output", "blocks.0.attention.output", "parts of a sum",
            missing="a reduction over tp after the output of module blocks.0.attention.output.product"),
    Mistake("megatron", "bias_on_every_rank", [["(self.product(part)) + self.bias", "(self.product(part) + self.bias)"]],
            "output", "blocks.0.attention.output", "is added 2 times: once per rank of tp", "all_reduce #2 of group tp", "dist.all_reduce(total"),
    Mistake("megatron", "column_layer_without_reduction_in_backward", [["self.up(GatherForLayer", "self.up(GatherForAll"]],
            "input gradient", "blocks.1.feed_forward", "parts of a sum",
            missing="a reduction over tp after the gradient of the input of module blocks.1.feed_forward.up"),
    Mistake("megatron", "gradients_gathered_as_sums", [["self.head(GatherForAll", "self.head(GatherForLayer"]],
            "input gradient", "norm", "2 times the expected value", "of group tp", "dist.all_reduce(total"),
    Mistake("megatron", "sections_of_a_fused_weight", [["3 * WIDTH), 0, sections=3)", "3 * WIDTH), 0)"]],
            "output", "blocks.0.attention.output.product", "other values"),
    Mistake("megatron", "parts_averaged_over_all_ranks",
            [[DATA_AVERAGE + "        parameter.grad /= dp_size", "        dist.all_reduce(parameter.grad)\n        parameter.grad /= dist.get_world_size()"]],
            "stepped gradient", "blocks.0.attention.qkv.weight", "the average over world of the ranks' gradients; expected the average over dp",
            "of group world", "dist.all_reduce(parameter.grad)"),
    Mistake("megatron", "a_parameter_not_averaged", [[DATA_AVERAGE, "        name == 'head.bias' or dist.all_reduce(parameter.grad, group=dp)\n"]],
            "stepped gradient", "head.bias", "those of dp add up", missing="an all-reduce over dp of the stepped gradient of head.bias"),
    Mistake("megatron", "positions_counted_within_the_part",
            [["Scatter.apply(self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1])))",
              "Scatter.apply(self.tokens(tokens)) + self.positions(torch.arange(tokens.shape[1] // tp_size))"]],
            "output", "positions", "the values of rank 0"),
    Mistake("megatron", "samples_divided_over_all_ranks", [["dp_size, dp_rank, shuffle", "dist.get_world_size(), dist.get_rank(), shuffle"]],
            "input", "", "rank 0, which is in the same group of tp, has other samples"),
    Mistake("megatron", "weights_drawn_per_rank", [["    weight = torch.cat", "    torch.manual_seed(tp_rank)\n    layer.reset_parameters()\n    weight = torch.cat"]],
            "prepared parameter", "blocks.0.attention.qkv.weight", "drawn per rank"),
    Mistake("megatron", "the_first_part_on_every_rank", [["dim)[tp_rank]", "dim)[0 if dim == 0 else tp_rank]"]],
            "prepared parameter", "blocks.0.attention.qkv.weight", "no rank holds the elements 4, 5, 6, 7"),
    # a mixture of experts
    Mistake("experts", "expert_gradients_divided_by_their_group",
            [["parameter.grad /= world", "parameter.grad /= dist.get_world_size(expert_dp) if is_expert else world"]],
            "stepped gradient", "mixture.experts.first", "the average over expert_dp of the ranks' gradients; expected the sum, divided by 4",
            "of group expert_dp", "dist.all_reduce(parameter.grad"),
    Mistake("experts", "expert_gradients_summed_over_all_ranks", [["group=expert_dp if is_expert else None", "group=None"]],
            "stepped gradient", "mixture.experts.first", "the average over dp of the ranks' gradients; expected the sum, divided by 4",
            "of group dp", "dist.all_reduce(parameter.grad"),
    Mistake("experts", "rows_return_in_another_order", [["index_put((order,), returned)", "index_put((order.argsort(),), returned)"]],
            "output", "mixture", "whose rows are right but in another order"),
    # by torch itself
    Mistake("dtensor", "norm_of_the_ranks_own_shards",
            [["torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)",
              "norm = sum(p.grad.to_local().square().sum() for p in model.parameters()).sqrt()\n"
              "    [p.grad.mul_(min(1.0, 0.25 / norm.item())) for p in model.parameters()]"]],
            "stepped gradient", "tokens.weight", "clipped by another norm", missing="an all-reduce of the norm's square over tp and dp"),
    Mistake("dtensor", "loss_divided_by_the_ranks", [["    loss.backward()", "    (loss / shards).backward()"]],
            "loss", "", "1/2 of the expected value"),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_is_named(tmp_path, mistake):
    skip_unless_torch_divides(mistake.program)
    text = (FOLDER / f"{mistake.program}.py").read_text()
    for old, new in mistake.edits:
        assert old in text, f"{old} is not in {mistake.program}"
        text = text.replace(old, new)
    program, layouts = tmp_path / "train.py", tmp_path / "layouts.yaml"
    program.write_text(text)
    layouts.write_text(f"- {MESHES[mistake.program]}\n")
    results, code = prove(program, "--layouts", layouts)
    assert code == 1
    (result,) = results.values()
    assert (result["verdict"], result["tensor"], result["module"]) == ("different", mistake.tensor, mistake.module), result
    assert mistake.text in result["cause"], result
    assert mistake.collective in result["collective"], result
    assert mistake.missing in result["missing"] and bool(mistake.missing) == bool(result["missing"]), result
    if mistake.line:
        number = int(result["collective"].rstrip(")").rpartition(":")[2])
        assert mistake.line in text.splitlines()[number - 1], result


def skip_unless_torch_divides(program):
    if program in ("dtensor", "accelerated") and TORCH < (2, 8):
        pytest.skip("torch 2.6 and before cannot run FSDP2 on CPUs")
    if program == "dtensor" and TORCH < (2, 9):
        pytest.skip("clip_grad_norm_ of torch 2.8 adds its 1e-6 to each rank's part of the norm, as prove finds")


RIGHT = [
    ("megatron", (), ["dp_replicate 2 x tp 2", "dp_replicate 4", "tp 4"]),
    ("experts", (), ["dp_replicate 2 x ep 2", "dp_replicate 4", "ep 4"]),
    ("dtensor", (), ["dp_shard 2 x tp 2", "dp_shard 4", "tp 4"]),
    ("accelerated", ("--map-cuda", "--axes", "dp_replicate,dp_shard"), ["dp_replicate 2 x dp_shard 2", "dp_replicate 4", "dp_shard 4"]),
    ("exact", (), ["dp_replicate 2 x tp 2", "dp_replicate 4", "tp 4"]),
]


@pytest.mark.parametrize("program, options, layouts", RIGHT, ids=[program for program, _, _ in RIGHT])
def test_a_right_program_is_equal_in_every_layout(program, options, layouts):
    skip_unless_torch_divides(program)
    results, code = prove(FOLDER / f"{program}.py", *options)
    assert {layout: result["verdict"] for layout, result in results.items()} == dict.fromkeys(layouts, "equal"), results
    assert code == 0


STYLES = """two_models_and_a_loss_module checkpointed keywords heads_in_the_batch selected_rows sequence_first
sequence_first_in_reverse two_batches_in_a_step equal_samples mixed_precision infinite_logits""".split()


@pytest.mark.parametrize("style", STYLES)
def test_a_right_program_is_equal_in_any_style(style):
    results, code = prove(FOLDER / "styles.py", arguments=[style], ranks=2)
    assert (results["dp_replicate 2"]["verdict"], code) == ("equal", 0), results


WRONG_STYLES = [
    ("infinite_logits", "self.network(x))", "self.network(x) + 0.3 * dist.get_rank())", "output", "other"),
    ("two_batches_in_a_step", "0.5 * model(other)", "(0.5 + 0.1 * dist.get_rank()) * model(other)", "loss", "losses"),
    ("selected_rows", "expert(x[rows])", "expert(x[rows]) * (1 + dist.get_rank())", "output", "2 times the expected value"),
    ("keywords", "return DataLoader(data, size,", "return DataLoader(data, size // dist.get_world_size(),", "input",
     "no rank has the samples 8, 9, 10, 11, ... of one rank's batch"),
]


@pytest.mark.parametrize("style, old, new, tensor, text", WRONG_STYLES, ids=[f"{style}_{n}" for n, (style, *_) in enumerate(WRONG_STYLES)])
def test_a_wrong_program_is_named_in_any_style(tmp_path, style, old, new, tensor, text):
    program = tmp_path / "train.py"
    original = (FOLDER / "styles.py").read_text()
    assert old in original
    program.write_text(original.replace(old, new))
    results, code = prove(program, arguments=[style], ranks=2)
    result = results["dp_replicate 2"]
    assert (result["verdict"], result["tensor"], code) == ("different", tensor, 1), result
    assert text in result["cause"], result


def test_samples_that_are_not_divided_are_named(tmp_path):
    program = tmp_path / "train.py"
    original = (FOLDER / "styles.py").read_text()
    program.write_text(original.replace("sampler=DistributedSampler(data, shuffle=False)", "shuffle=False"))
    results, code = prove(program, arguments=["keywords"], ranks=2)
    assert (results["dp_replicate 2"]["verdict"], code) == ("equal", 0)
    assert "does not divide them" in results["dp_replicate 2"]["text"]


def test_a_hang_is_explained(tmp_path):
    program = tmp_path / "train.py"
    original = (FOLDER / "styles.py").read_text()
    program.write_text(original.replace("        optimizer.step()", "        dist.get_rank() or dist.barrier()\n        optimizer.step()"))
    results, code = prove(program, arguments=["keywords"], ranks=2)
    assert results["dp_replicate 2"]["verdict"] == "failed" and code == 1
    assert "barrier" in results["dp_replicate 2"]["text"]


@pytest.mark.skipif(TORCH < (2, 6), reason="Accelerate's FSDP 2 needs torch 2.6")
def test_tensor_parallelism_of_accelerate_is_equal():
    pytest.importorskip("transformers")
    results, code = prove(FOLDER / "accelerated.py", "--map-cuda", "--axes", "tp")
    assert (results["tp 4"]["verdict"], code) == ("equal", 0), results


def test_dyadic_numbers_are_compared_without_tolerance(tmp_path):
    text = (FOLDER / "exact.py").read_text()
    program = tmp_path / "train.py"
    program.write_text(text.replace("return Reduce.apply(", "return (1 + 2**-40 * (tp_rank == 1)) * Reduce.apply("))
    results, code = prove(program, "--axes", "tp")
    assert (results["tp 4"]["tensor"], code) == ("output", 1), results
    assert "differs by little" in results["tp 4"]["cause"]
    program.write_text(program.read_text().replace("simranks.dyadic(", "("))
    assert prove(program, "--axes", "tp")[1] == 0


def test_a_layout_that_the_program_refuses_is_no_failure(tmp_path):
    program = tmp_path / "train.py"
    text = (FOLDER / "megatron.py").read_text()
    program.write_text(text.replace("dp_size = dist", "if tp_size > 2: raise ValueError('at most 2')\ndp_size = dist", 1))
    results, code = prove(program)
    assert results["tp 4"]["verdict"] == "refused" and "at most 2" in results["tp 4"]["text"]
    assert code == 0


def test_a_program_that_trains_nothing_is_an_error(tmp_path):
    program = tmp_path / "train.py"
    program.write_text("import torch\nprint(torch.ones(1))\n")
    done = run([simranks.sim_run(), "prove", "--ranks", 2, "--", sys.executable, program])
    assert done.code == 1 and "nothing was recorded" in done.error


def test_wrong_usage_is_refused_with_all_problems():
    done = run([simranks.sim_run(), "prove", "--ranks", 1, "--max-steps", 0, "--set", "a=1", "--", sys.executable, "train.py"])
    assert done.code == 2
    for part in ("--ranks: expected 2 to 256", "--max-steps: expected 1 or more", "--set: only experiments"):
        assert part in done.error
