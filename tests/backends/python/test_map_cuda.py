"""`sim-run --map-cuda`: programs for GPUs on CPU ranks."""

import sys

import pytest
import simranks
from conftest import PROGRAMS, TORCH, results_of, run, simulate, simulate_text, skip_unless_torch_can

PROGRAM = PROGRAMS / "gpu_trainings.py"
MAP = ["--map-cuda"]
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
TRAININGS = ("ddp", "ddp_float16", "gpt", "trainer", "accelerate", "fsdp2")
CASES = [(name, 2) for name in TRAININGS] + [("ddp", 4), ("fsdp2", 3)]


@pytest.mark.parametrize("name, ranks", CASES)
def test_bits_are_those_of_the_program_for_cpus(name, ranks):
    if name == "fsdp2":
        skip_unless_torch_can(name)
    mapped = simulate(ranks, PROGRAM, name, "cuda", options=MAP)
    assert mapped.code == 0, mapped.error
    expected = simulate(ranks, PROGRAM, name, "cpu")
    assert expected.code == 0, expected.error
    assert len(results_of(expected.output)) == ranks
    assert results_of(mapped.output) == results_of(expected.output)


def test_without_the_option_the_error_names_it(tmp_path):
    refused = simulate_text(tmp_path, 2, "import torch.distributed as dist\ndist.init_process_group('nccl')\n")
    assert refused.code == 1
    assert "got backend 'nccl'; use backend='gloo', or `sim-run --map-cuda`" in refused.error, refused.error
    refused = simulate_text(tmp_path, 2, "import torch\ntorch.ones(2).cuda()\n")
    assert refused.code == 1 and "as on a machine without GPUs, or `sim-run --map-cuda`" in refused.error, refused.error


# Each line asserts by itself, in a rank of two.
ANSWERS = '''
import os, threading, torch, torch.distributed as dist
from torch.utils.data import DataLoader
rank = int(os.environ["LOCAL_RANK"])
assert torch.cuda.is_available() and torch.cuda.device_count() == 2 and torch.cuda.current_device() == rank
assert torch.cuda.is_bf16_supported() and torch.cuda.get_device_capability() >= (8, 0)
assert torch.cuda.memory_allocated() == torch.cuda.max_memory_allocated(0) == 0
assert torch.cuda.get_device_name(0) and torch.cuda.get_device_properties(0).total_memory > 0
with torch.cuda.device(1): assert torch.cuda.current_device() == 1
assert torch.cuda.current_device() == rank
torch.cuda.set_device(torch.device("cuda:1"))
assert torch.cuda.current_device() == 1
torch.cuda.synchronize(), torch.cuda.empty_cache(), torch.cuda.reset_peak_memory_stats()
torch.cuda.nvtx.range_push("x"), torch.cuda.nvtx.range_pop()
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
start.record(), end.record(), end.synchronize()
assert start.elapsed_time(end) >= 0
one = torch.ones(2)
for tensor in (torch.ones(2, device="cuda"), torch.ones(2, device=torch.device("cuda", 1)),
               torch.tensor([1.0], device=1), one.cuda(), one.cuda(1), one.to("cuda:1"), one.to(0, torch.float64),
               one.to(device="cuda", dtype=torch.int32), one.new_zeros(3, device="cuda"),
               torch.zeros_like(one, device="cuda"), torch.empty(2, pin_memory=True), one.pin_memory(),
               torch.cuda.FloatTensor([1.0]), one.type("torch.cuda.DoubleTensor"),
               torch.nn.Linear(2, 2, device="cuda").weight, torch.nn.Linear(2, 2).cuda().weight,
               torch.nn.Linear(2, 2).to(1).weight,
               torch.randn(2, device="cuda", generator=torch.Generator(device="cuda").manual_seed(1))):
    assert tensor.device.type == "cpu", tensor
with torch.device("cuda"): assert torch.zeros(2).device.type == "cpu"
with torch.device("meta"): assert torch.zeros(2).is_meta and torch.zeros(2, device="cuda").device.type == "cpu"
torch.set_default_device("cuda")
assert torch.zeros(2).device.type == "cpu"
torch.set_default_device(None)
assert isinstance(torch.default_generator, torch.Generator)
torch.manual_seed(1), torch.cuda.manual_seed(2)
first = torch.rand(3, device="cuda")
torch.cuda.manual_seed_all(2)
assert first.equal(torch.rand(3, device="cuda"))
state = torch.cuda.get_rng_state()
first = torch.rand(3)
torch.cuda.set_rng_state(state)
assert first.equal(torch.rand(3))
square = torch.ones(2, 2)
with torch.autocast("cuda"): assert torch.is_autocast_enabled() and (square @ square).dtype == torch.float16
moved = []
thread = threading.Thread(target=lambda: moved.append(torch.ones(2).cuda()))
thread.start(), thread.join()
assert moved
for workers in (0, 1):
    loader = DataLoader(torch.ones(4), batch_size=2, pin_memory=True, num_workers=workers)
    assert [batch.cuda().sum().item() for batch in loader] == [2, 2]
model = torch.nn.DataParallel(torch.nn.Linear(2, 2)).cuda()
assert model(torch.ones(1, 2).cuda()).shape == (1, 2)
assert dist.is_nccl_available()
dist.init_process_group(device_id=torch.device("cuda", rank))
group = dist.new_group([0, 1], backend="nccl")
total = torch.ones(2, device="cuda")
dist.all_reduce(total, group=group), dist.barrier(device_ids=[rank])
assert total.tolist() == [2, 2]
objects = [rank]
dist.broadcast_object_list(objects, src=1, device=torch.device("cuda", rank))
assert objects == [1]
print("result", rank)
'''


def test_answers(tmp_path):
    done = simulate_text(tmp_path, 2, ANSWERS, *MAP)
    assert done.code == 0, done.error
    assert len(results_of(done.output)) == 2


REFUSED = {
    "torch.cuda.CUDAGraph()": "torch.cuda.CUDAGraph",
    "torch.cuda.graph(None)": "torch.cuda.graph",
    "torch.cuda.nccl.all_reduce([torch.ones(2)])": "torch.cuda.nccl.all_reduce",
    "FullyShardedDataParallel(torch.nn.Linear(2, 2))": "torch.distributed.fsdp.FullyShardedDataParallel",
    "torch.nn.SyncBatchNorm(3)(torch.ones(2, 3))": "torch.nn.SyncBatchNorm",
    "CUDAExtension('x', ['x.cu'])": "a CUDA kernel that torch.utils.cpp_extension builds",
    "torch._C._cuda_init()": None,  # torch's own
}


def test_what_cannot_be_mapped_is_named(tmp_path):
    calls = "".join(
        f"try: {call}; print('no error in {index}')\n"
        f"except Exception as error: print('error', {index}, str(error), flush=True)\n"
        for index, call in enumerate(REFUSED)
    )
    text = (
        "import torch, torch.distributed as dist\n"
        "from torch.distributed.fsdp import FullyShardedDataParallel\n"
        "from torch.utils.cpp_extension import CUDAExtension\n"
        "dist.init_process_group('nccl')\n" + calls
    )
    done = simulate_text(tmp_path, 2, text, *MAP)
    assert done.code == 0, done.error
    for index, what in enumerate(REFUSED.values()):
        text = f"[rank 0] error {index} --map-cuda cannot run {what}, which needs a GPU"
        assert what is None or text in done.output, done.output


def test_kernels_of_triton_are_refused(tmp_path):
    pytest.importorskip("triton")
    text = (
        "import torch, triton, triton.language as tl\n"
        "@triton.jit\n"
        "def kernel(x): tl.store(x, 1.0)\n"
        "kernel[(1,)](torch.ones(1, device='cuda'))\n"
    )
    done = simulate_text(tmp_path, 2, text, *MAP)
    text = "--map-cuda cannot run a kernel of triton" if TORCH >= (2, 8) else "libcuda.so"  # which older ones look for first
    assert done.code == 1 and text in done.error, done.error


def test_ranks_of_torchrun(no_leftovers):
    words = [sys.executable, *TORCHRUN, 3, PROGRAM, "ddp", "cuda"]
    done = run([simranks.sim_run(), *MAP, "--", *words], OMP_NUM_THREADS="1")
    assert done.code == 0, done.error
    assert results_of(done.output) == results_of(simulate(3, PROGRAM, "ddp", "cpu").output)


def test_a_program_that_spawns_a_rank_per_gpu(no_leftovers):
    from simranks.ranks import free_port

    words = [sys.executable, PROGRAM, "spawn", free_port()]
    done = run([simranks.sim_run(), *MAP, "--ranks", 0, "--", *words], OMP_NUM_THREADS="1")
    assert done.code == 0, done.error
    assert results_of(done.output) == results_of(simulate(4, PROGRAM, "trainer", "cpu").output)


def test_explore_maps_too(tmp_path):
    words = ["--ranks", 2, "--schedules", 2, "--", sys.executable, PROGRAM, "trainer", "cuda"]
    done = run([simranks.sim_run(), "explore", *MAP, *words])
    assert done.code == 0 and '"found":null' in done.output, done.error


TESTS = '''
import pytest, torch, torch.distributed as dist

@pytest.mark.ranks(2, map_cuda=True)
def test_mapped():
    dist.init_process_group("nccl")
    total = torch.ones(2, device=f"cuda:{dist.get_rank()}")
    dist.all_reduce(total)
    assert total.tolist() == [2, 2] and torch.cuda.device_count() == 2

@pytest.mark.ranks(2, map_cuda=False)
def test_not_mapped():
    with pytest.raises(RuntimeError, match="simulated ranks have no GPUs"):
        torch.ones(2).cuda()
'''


def test_marked_tests(tmp_path, no_leftovers):
    (tmp_path / "test_it.py").write_text(TESTS)
    done = run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path / "test_it.py"])
    assert "2 passed" in done.output, done.output


@pytest.mark.parametrize("options, words, text", [
    (["--processes"], ["/bin/true"], "--map-cuda: maps devices of Python programs only"),
    (["--backend", "gloo"], [sys.executable, "-c", "0"], "--map-cuda: only the simulator supports this option"),
])
def test_other_programs_are_refused(options, words, text):
    done = run([simranks.sim_run(), *MAP, *options, "--", *words])
    assert done.code == 2 and text in done.error, done.error
