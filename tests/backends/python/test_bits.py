"""The same bits as Python over real Gloo processes."""

import pytest
from conftest import PROGRAMS, launch, results_of, simulate, skip_unless_torch_can
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
    skip_unless_torch_can(name)
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


def test_sixty_four_ranks():
    run = simulate(64, PROGRAMS / "trainings.py", "accelerate", seconds=180)
    assert run.code == 0, run.error
    lines = results_of(run.output)
    assert len(lines) == 64
    assert len({line.split()[2] for line in lines}) == 1
