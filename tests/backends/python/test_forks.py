"""A process that a rank forks shares the rank's channel, and must not write into it."""

from conftest import results_of, simulate_text

REFUSAL = "was forked by rank {} (process "

BEGIN = (
    "import os, sys, torch, torch.distributed as dist\n"
    "dist.init_process_group('gloo')\n"
    "rank, total = dist.get_rank(), torch.ones(2)\n"
)
END = "dist.all_reduce(total)\nprint('result', rank, total.tolist())\n"


def test_a_forked_process_is_refused_and_its_rank_goes_on(tmp_path):
    text = (
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try:\n"
        "        dist.all_reduce(total)\n"
        "    except RuntimeError as error:\n"
        "        print('refused', error, flush=True)\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
    )
    run = simulate_text(tmp_path, 2, BEGIN + text + END)
    assert run.code == 0, run.error
    assert results_of(run.output) == ["result 0 [2.0, 2.0]", "result 1 [2.0, 2.0]"]
    for rank in (0, 1):
        assert "refused process" in run.output and REFUSAL.format(rank) in run.output, run.output
    assert "make them there, not in a worker of a DataLoader or of multiprocessing" in run.output


def test_an_error_of_a_forked_process_is_not_that_of_its_rank(tmp_path):
    text = (
        "child = os.fork()\n"
        "if child == 0:\n"
        "    raise ValueError('of the child')\n"
        "assert os.waitpid(child, 0)[1] == 256\n"
    )
    run = simulate_text(tmp_path, 2, BEGIN + text + END)
    assert run.code == 0, run.error
    assert len(results_of(run.output)) == 2
    assert "ValueError: of the child" in run.error


def test_a_worker_of_a_loader_that_calls_a_collective_is_refused(tmp_path):
    text = (
        "class Data(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 2\n"
        "    def __getitem__(self, index):\n"
        "        dist.all_reduce(total)\n"
        "        return index\n"
        "next(iter(torch.utils.data.DataLoader(Data(), num_workers=1)))\n"
    )
    run = simulate_text(tmp_path, 2, BEGIN + text + END)
    assert run.code == 1
    assert REFUSAL.format(0) in run.error or REFUSAL.format(1) in run.error, run.error


def test_a_training_in_a_forked_process_is_not_observed(tmp_path):
    """Phases, backward passes, optimizer steps and samplers of a process that is no rank say nothing to the simulator."""
    text = (
        "child = os.fork()\n"
        "if child == 0:\n"
        "    model = torch.nn.Linear(2, 1)\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=rank + 1.0)\n"
        "    model(total).sum().backward()\n"
        "    optimizer.step()\n"
        "    os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
    )
    run = simulate_text(tmp_path, 2, BEGIN + text + END)
    assert run.code == 0, run.error
    assert len(results_of(run.output)) == 2
