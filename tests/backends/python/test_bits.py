"""The same bits as Python over real Gloo processes."""

import pytest
from conftest import PROGRAMS, TORCH, launch, results_of, simulate, simulate_text, skip_unless_gloo_is_right, skip_unless_torch_can
from record_bits import RANKS, bits_of, recorded_bits

CASES = [
    *[("accelerate", ranks) for ranks in (2, 3, 4, 8)],
    *[("operations", ranks) for ranks in (2, 3, 4)],
    *[(name, ranks) for name in ("bf16", "unused", "sparse", "fsdp2", "tensor_parallel") for ranks in (2, 4)],
    ("workers", 2),
    ("hybrid", 4),
    ("pipeline", 4),
    ("trainer", 2),
    ("trainer", 3),
]


@pytest.mark.parametrize("name, ranks", CASES)
def test_trainings_equal_gloo(name, ranks):
    skip_unless_gloo_is_right(name)
    simulated = simulate(ranks, PROGRAMS / "trainings.py", name)
    assert simulated.code == 0, simulated.error
    real = launch(ranks, PROGRAMS / "trainings.py", name)
    assert real.code == 0, real.error
    assert len(results_of(real.output)) == ranks
    assert results_of(simulated.output) == results_of(real.output)


@pytest.mark.parametrize("ranks", RANKS)
def test_reductions_have_the_recorded_bits_of_gloo(ranks):
    recorded = recorded_bits()
    if recorded is None:
        pytest.skip("the bits of this version's Gloo were never recorded; see record_bits.py")
    run = simulate(ranks, PROGRAMS / "reductions.py")
    assert run.code == 0, run.error
    simulated = bits_of(run.output)
    assert simulated == {case: bits for case, bits in recorded.items() if case.split()[0] == str(ranks)}


def test_each_dtype_is_reduced_or_refused_as_by_gloo():
    simulated, real = simulate(2, PROGRAMS / "dtypes.py"), launch(2, PROGRAMS / "dtypes.py")
    assert (simulated.code, real.code) == (0, 0), simulated.error + real.error
    assert len(results_of(real.output)) > 600
    assert sorted(results_of(simulated.output)) == sorted(results_of(real.output))


def test_gradients_of_fsdp2_are_averages(tmp_path):
    """Of which Gloo of torch 2.8 gives the sums."""
    skip_unless_torch_can("fsdp2")
    run = simulate_text(
        tmp_path, 3,
        "import torch, torch.distributed as dist\n"
        "from torch.distributed.fsdp import fully_shard\n"
        "dist.init_process_group('gloo')\n"
        "torch.manual_seed(1)\n"
        "model = torch.nn.Linear(5, 4)\n"
        "inputs = [torch.randn(6, 5) for _ in range(dist.get_world_size())]\n"
        "for x in inputs:\n"
        "    model(x).square().mean().backward()\n"
        "expected = [parameter.grad / len(inputs) for parameter in model.parameters()]\n"
        "model.zero_grad()\n"
        "model = fully_shard(model)\n"
        "model(inputs[dist.get_rank()]).square().mean().backward()\n"
        "for parameter, mean in zip(model.parameters(), expected):\n"
        "    torch.testing.assert_close(parameter.grad.full_tensor(), mean)\n",
    )
    assert run.code == 0, run.error
    assert ("[backend_faults]" in run.error) == (TORCH <= (2, 8)), run.error


def test_sixty_four_ranks():
    run = simulate(64, PROGRAMS / "trainings.py", "accelerate", seconds=180)
    assert run.code == 0, run.error
    lines = results_of(run.output)
    assert len(lines) == 64
    assert len({line.split()[2] for line in lines}) == 1
