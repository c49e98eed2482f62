"""Futures and works where C++ code, hooks or nobody waits for them."""

from conftest import results_of, simulate_text

DDP = """
import torch, torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()

def train(hook=None, state=None, **options):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.ReLU(), torch.nn.Linear(9, 3))
    model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.0001, **options)
    if hook:
        model.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    numbers = torch.Generator().manual_seed(rank)
    for _ in range(4):
        model(torch.randn(5, 6, generator=numbers)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
"""


def test_a_static_graph_ends(tmp_path):
    """Its first step reduces inside a callback of the engine, where a further callback would come too late."""
    run = simulate_text(tmp_path, 2, DDP + "assert torch.equal(train(), train(static_graph=True))\nprint('result', rank)\n")
    assert run.code == 0, run.error
    assert len(results_of(run.output)) == 2


def test_communication_hooks(tmp_path):
    """Python code that waits for a future inside a backward pass, or inside a callback of a future."""
    run = simulate_text(
        tmp_path, 2,
        DDP + "expected = train()\n"
        "assert torch.allclose(train(default_hooks.allreduce_hook), expected, atol=1e-6)\n"  # divides before the sum
        "assert torch.allclose(train(default_hooks.bf16_compress_hook), expected, atol=0.01)\n"  # 8 bits of a mantissa
        "state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)\n"
        "assert train(powerSGD_hook.powerSGD_hook, state).isfinite().all()\n"
        "def waits(_, bucket):\n"
        "    work = dist.all_reduce(bucket.buffer(), async_op=True)\n"
        "    future = work.get_future().then(lambda future: future.value()[0] / size)\n"
        "    future.wait()\n"
        "    return future\n"
        "assert torch.allclose(train(waits), expected, atol=1e-6)\n"
        "print('result', rank)\n",
    )
    assert run.code == 0, run.error
    assert len(results_of(run.output)) == 2


def test_an_error_in_a_backward_pass_is_the_programs(tmp_path):
    """Rank 1 ends while the gradients of rank 0 are under way: the reducer must get an error, not a wrong value."""
    run = simulate_text(
        tmp_path, 2,
        DDP + "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))\n"
        "if rank == 0:\n"
        "    model(torch.ones(1, 2)).sum().backward()\n",
    )
    assert run.code == 3, run.error
    assert "rank 1 has ended its program" in run.error and "program.py:" in run.error, run.error


def test_functional_collectives(tmp_path):
    run = simulate_text(
        tmp_path, 2,
        "import torch, torch.distributed as dist\n"
        "import torch.distributed._functional_collectives as functional\n"
        "dist.init_process_group('gloo')\n"
        "rank, size, world = dist.get_rank(), dist.get_world_size(), dist.group.WORLD\n"
        "mine = torch.full((2,), float(rank))\n"
        "assert functional.all_reduce(mine, 'sum', world).tolist() == [1, 1]\n"
        "assert functional.all_gather_tensor(mine, 0, world).tolist() == [0, 0, 1, 1]\n"
        "assert functional.reduce_scatter_tensor(torch.arange(4.0), 'sum', 0, world).tolist() == [[0, 2], [4, 6]][rank]\n"
        "received = functional.all_to_all_single(torch.arange(2.0) + rank, None, None, world)\n"
        "assert received.tolist() == [[0, 1], [1, 2]][rank]\n"
        "ops, out = torch.ops._c10d_functional, torch.zeros(4)\n"
        "ops.wait_tensor(ops.all_gather_into_tensor_out(mine, size, world.group_name, out=out))\n"
        "assert out.tolist() == [0, 0, 1, 1]\n"
        "print('result', rank)\n",
    )
    assert run.code == 0, run.error
    assert len(results_of(run.output)) == 2


def test_works_without_tensors(tmp_path):
    run = simulate_text(
        tmp_path, 2,
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "work = dist.barrier(async_op=True)\n"
        "work.wait()\n"
        "assert work.is_completed() and work.result() == [] and work.get_future().wait() == []\n"
        "print('result', dist.get_rank())\n",
    )
    assert run.code == 0, run.error
    assert len(results_of(run.output)) == 2


def test_a_coalescing_manager(tmp_path):
    run = simulate_text(
        tmp_path, 2,
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "first, second = torch.ones(3), torch.ones(2)\n"
        "with dist._coalescing_manager(dist.group.WORLD, async_ops=True) as manager:\n"
        "    dist.all_reduce(first)\n"
        "    dist.all_reduce(second)\n"
        "manager.wait()\n"
        "print('result', dist.get_rank(), first.tolist(), second.tolist())\n",
    )
    assert run.code == 0, run.error
    assert results_of(run.output) == [f"result {rank} [2.0, 2.0, 2.0] [2.0, 2.0]" for rank in (0, 1)]


def test_a_mode_of_the_program_outlives_the_watch(tmp_path):
    """The watch of operators and a mode of the program may end in any order."""
    run = simulate_text(
        tmp_path, 2,
        "import torch, torch.distributed as dist\n"
        "from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode\n"
        "dist.init_process_group('gloo')\n"
        "class Counts(TorchDispatchMode):\n"
        "    count = 0\n"
        "    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):\n"
        "        self.count += 1\n"
        "        return operator(*args, **(kwargs or {}))\n"
        "tensor, other = torch.ones(4), torch.ones(4)\n"
        "work = dist.all_reduce(tensor, async_op=True)\n"
        "with Counts() as counts:\n"
        "    other + 1\n"
        "    work.wait()\n"
        "    other + 1\n"
        "assert counts.count >= 2\n"
        "with Counts() as counts:\n"
        "    dist.all_reduce(tensor, async_op=True).wait()\n"
        "    other + 1\n"
        "dist.all_reduce(tensor, async_op=True).wait()\n"
        "assert _get_current_dispatch_mode() is None\n"
        "print('result', dist.get_rank())\n",
    )
    assert run.code == 0, run.error
    assert len(results_of(run.output)) == 2
