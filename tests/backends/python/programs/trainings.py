"""Ordinary trainings that know nothing of the simulator. Each prints hashes of its losses and parameters."""

import hashlib
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

TORCH = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])


def digest(tensors):
    return hashlib.sha256(b"".join(t.detach().contiguous().view(torch.uint8).numpy().tobytes() for t in tensors)).hexdigest()[:16]


def accelerate(precision="no", workers=0, **options):
    from accelerate import Accelerator, DistributedDataParallelKwargs
    from accelerate.utils import set_seed
    from torch.utils.data import DataLoader, TensorDataset

    accelerator = Accelerator(
        cpu=True, mixed_precision=precision, gradient_accumulation_steps=2,
        kwargs_handlers=[DistributedDataParallelKwargs(bucket_cap_mb=0.05, **options)],
    )
    set_seed(7)
    sizes = [64, 128, 128, 10]
    layers = [layer for a, b in zip(sizes, sizes[1:]) for layer in (torch.nn.Linear(a, b), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers[:-1])
    data = TensorDataset(torch.randn(1003, 64), torch.randint(0, 10, (1003,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(data, batch_size=16, shuffle=True, num_workers=workers)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for _ in range(2):
        for _, (x, y) in zip(range(8), loader):
            with accelerator.accumulate(model):
                output = model(x)
                loss = cross_entropy(output, y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(accelerator.reduce(loss.detach(), "mean").item().hex())
    metrics = accelerator.gather_for_metrics(output.detach())
    return digest(model.parameters()), losses[-1], digest([metrics])


def bf16():
    return accelerate("bf16")


def workers():
    return accelerate(workers=2)


def unused():
    return accelerate(find_unused_parameters=True)


def _sharded(mesh_sizes, names):
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    blocks = [torch.nn.Sequential(torch.nn.Linear(97, 97), torch.nn.GELU()) for _ in range(3)]
    model = torch.nn.Sequential(*blocks, torch.nn.Linear(97, 10))
    mesh = dist.device_mesh.init_device_mesh("cpu", mesh_sizes(), mesh_dim_names=names)
    for part in [*blocks, model]:
        fully_shard(part, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    numbers = torch.Generator().manual_seed(100 + dist.get_rank())
    for _ in range(10):
        x, y = torch.randn(16, 97, generator=numbers), torch.randint(0, 10, (16,), generator=numbers)
        loss = cross_entropy(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return digest([parameter.full_tensor() for parameter in model.parameters()]), loss.item().hex()


def fsdp2():
    return _sharded(lambda: (dist.get_world_size(),), ("shard",))


def hybrid():
    return _sharded(lambda: (2, dist.get_world_size() // 2), ("replicate", "shard"))


def tensor_parallel():
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(48, 96), torch.nn.ReLU(), torch.nn.Linear(96, 48))
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        loss = model(torch.randn(16, 48)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return digest([parameter.full_tensor() for parameter in model.parameters()]), loss.item().hex()


def pipeline():
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    part = torch.nn.Sequential(torch.nn.Linear(24, 24), torch.nn.GELU())
    stage = PipelineStage(part, rank, size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=lambda output, target: (output - target).square().mean())
    losses = []
    schedule.step(*([torch.ones(8, 24)] if rank == 0 else []), target=torch.zeros(8, 24), losses=losses)
    return digest([parameter.grad for parameter in part.parameters()]), [loss.item().hex() for loss in losses]


def trainer():
    """A transformers model with random weights under Trainer."""
    import tempfile

    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32,
    )
    rows = torch.randint(0, 64, (96, 16))
    data = [{"input_ids": row, "labels": row} for row in rows]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, per_device_train_batch_size=4, max_steps=6, logging_steps=1, save_strategy="no",
            use_cpu=True, report_to=[], disable_tqdm=True, seed=5,
        )
        training = Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=data)
        training.train()
        losses = [entry["loss"] for entry in training.state.log_history if "loss" in entry]
        return digest(training.model.parameters()), repr(losses)


def sparse():
    """An embedding with sparse gradients under DDP; then sums with entries twice, none on some ranks, dense dimensions, and asynchronous."""
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(50, 7, sparse=True), torch.nn.Flatten(), torch.nn.Linear(21, 5))
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    numbers = torch.Generator().manual_seed(rank)
    for _ in range(6):
        loss = cross_entropy(model(torch.randint(0, 50, (8, 3), generator=numbers)), torch.randint(0, 5, (8,), generator=numbers))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    seen = []
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
        for sizes, sparse_dim in (((9,), 1), ((6, 4), 2), ((5, 3, 2), 1), ((4, 0), 1)):
            entries = 0 if rank == size - 1 else rank + 3
            indices = torch.stack([torch.randint(0, length, (entries,), generator=numbers) for length in sizes[:sparse_dim]])
            values = (torch.randn(entries, *sizes[sparse_dim:], generator=numbers) * 8).to(dtype)
            tensor = torch.sparse_coo_tensor(indices, values, sizes)
            dist.all_reduce(tensor, async_op=True).wait()
            assert tensor.is_coalesced()
            seen += [tensor.indices(), tensor.values()]
    return digest([*model.parameters(), *seen]), loss.item().hex()


def operations():
    """Every operation of a process group that Gloo of this version has, with odd shapes and several dtypes."""
    dist.init_process_group("gloo")
    has_average = TORCH > (2, 6)
    rank, size = dist.get_rank(), dist.get_world_size()
    numbers = torch.Generator().manual_seed(rank)
    seen = []

    def fresh(*shape, dtype=torch.float32):
        return (torch.randn(*shape, generator=numbers) * 8).to(dtype)

    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8):
        kinds = ["SUM", "PRODUCT", "MIN", "MAX"] + (
            ["AVG"] * has_average if dtype.is_floating_point else ["BAND", "BOR", "BXOR"]
        )
        for kind in kinds:
            tensor = fresh(5, 7, dtype=dtype)
            dist.all_reduce(tensor, getattr(dist.ReduceOp, kind))
            seen.append(tensor)
    for dtype in (torch.complex64, torch.complex128):
        for kind in ["SUM"] + ["AVG"] * has_average:
            pairs = torch.randn(37, dtype=dtype, generator=numbers)
            dist.all_reduce(pairs, getattr(dist.ReduceOp, kind))
            seen.append(torch.view_as_real(pairs))
            if TORCH > (2, 8):
                part = torch.empty(5, dtype=dtype)
                dist.reduce_scatter_tensor(
                    part, torch.randn(5 * size, dtype=dtype, generator=numbers), getattr(dist.ReduceOp, kind)
                )
                seen.append(torch.view_as_real(part))
    transposed = fresh(6, 4).t()
    dist.all_reduce(transposed)
    large = fresh(300_001)
    dist.all_reduce(large)
    reduced = fresh(33)
    dist.reduce(reduced, dst=size - 1)
    seen += [transposed.contiguous(), large] + ([reduced] if rank == size - 1 else [])
    for root in range(size):
        tensor = fresh(3, 3)
        dist.broadcast(tensor, root)
        seen.append(tensor)
    parts = [torch.empty(9) for _ in range(size)]
    dist.all_gather(parts, fresh(9))
    whole = torch.empty(size * 4, 2)
    dist.all_gather_into_tensor(whole, fresh(4, 2))
    seen += [*parts, whole]
    gathered = [torch.empty(5) for _ in range(size)] if rank == 0 else None
    dist.gather(fresh(5), gathered, dst=0)
    piece = torch.empty(6)
    dist.scatter(piece, [fresh(6) for _ in range(size)] if rank == 0 else None, src=0)
    summed, flat = torch.empty(4), torch.empty(3)
    if TORCH > (2, 6):
        dist.reduce_scatter(summed, [fresh(4) for _ in range(size)])
    else:
        summed.zero_()
    dist.reduce_scatter_tensor(flat, fresh(3 * size))
    seen += [*(gathered or []), piece, summed, flat]
    rows = [rank + 1] * size
    single = torch.empty(sum(other + 1 for other in range(size)), 2)
    dist.all_to_all_single(single, fresh(sum(rows), 2), [other + 1 for other in range(size)], rows)
    seen.append(single)
    if TORCH >= (2, 12):
        for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.int64):
            parts = [torch.empty(3, 2, dtype=dtype) for _ in range(size)]
            dist.all_to_all(parts, [fresh(2, 3, dtype=dtype).t() for _ in range(size)])
            dist.all_to_all(parts, parts)  # in place
            seen += parts
    sent, received = fresh(11), torch.empty(11)
    works = [dist.isend(sent, (rank + 1) % size, tag=3), dist.irecv(received, (rank - 1) % size, tag=3)]
    for work in works:
        work.wait()
    seen.append(received)
    if rank == 0:
        order = sorted((dist.recv(received), received.clone()) for _ in range(1))
        seen += [tensor for _, tensor in order]
    elif rank == 1:
        dist.send(fresh(11), 0)
    tensors = [fresh(4), fresh(2, 3)]
    dist.all_reduce_coalesced(tensors)
    seen += tensors
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank})
    pair = dist.new_group([0, size - 1])
    if rank in (0, size - 1):
        tensor = fresh(8)
        dist.all_reduce(tensor, group=pair)
        seen.append(tensor)
    dist.monitored_barrier()
    dist.barrier()
    return digest(seen), len(seen), repr(objects)


result = globals()[sys.argv[1]]()
rank = int(os.environ["RANK"])
sys.stdout.write(f"result {rank} {' '.join(map(str, result))}\n")  # one write, so that lines of ranks do not mix
sys.stdout.flush()
if dist.is_initialized():
    dist.barrier()
    if TORCH < (2, 6):
        os._exit(0)  # destroy_process_group() of torch 2.4 may wait for Gloo's thread, which waits for the interpreter's lock
    dist.destroy_process_group()
