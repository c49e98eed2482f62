"""Trainings as programs for GPUs write them: `gpu_trainings.py NAME cuda`. With `cpu` each is the same program for CPUs
and Gloo, which must compute the same bits."""

import argparse
import contextlib
import hashlib
import io
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP


def digest(tensors):
    parts = (tensor.detach().contiguous().view(torch.uint8).numpy().tobytes() for tensor in tensors)
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def network():
    return torch.nn.Sequential(torch.nn.Linear(24, 48), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(48, 5))


def samples():
    numbers = torch.Generator().manual_seed(11)
    return torch.utils.data.TensorDataset(
        torch.randn(160, 24, generator=numbers), torch.randint(0, 5, (160,), generator=numbers))


def ddp(on_gpus, dtype=torch.bfloat16):
    """Mixed precision, streams, pinned memory, and a checkpoint."""
    rank, local_rank, size = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    if on_gpus:
        assert torch.cuda.is_available() and torch.cuda.device_count() == size
        device = torch.device(f"cuda:{local_rank}")
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
        assert torch.cuda.current_device() == local_rank
        torch.cuda.manual_seed_all(5)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    torch.manual_seed(5)
    model = network().to(device)
    model = DDP(model, device_ids=[local_rank], output_device=local_rank) if on_gpus else DDP(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
    sampler = torch.utils.data.DistributedSampler(samples(), seed=3)
    loader = torch.utils.data.DataLoader(samples(), batch_size=8, sampler=sampler, pin_memory=on_gpus)
    torch.manual_seed(100 + rank)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            if on_gpus:
                with torch.cuda.stream(torch.cuda.Stream()):
                    x, y = x.cuda(non_blocking=True), y.to(local_rank, non_blocking=True)
                torch.cuda.current_stream().synchronize()
            with torch.autocast(device_type=device.type, dtype=dtype):
                loss = cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
    total = loss.detach().clone()
    dist.all_reduce(total)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "generator": torch.get_rng_state()}, file)
    file.seek(0)
    saved = torch.load(file, map_location={"cuda:0": f"cuda:{local_rank}"} if on_gpus else "cpu")
    if on_gpus:
        torch.cuda.synchronize()
        assert torch.cuda.max_memory_allocated() >= 0
    return digest(saved["model"].values()), total.item().hex(), scaler.get_scale()


def ddp_float16(on_gpus):
    return ddp(on_gpus, torch.float16)


class Attention(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.projection, self.output = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)

    def forward(self, x):
        parts = [part.view(*x.shape[:2], 2, -1).transpose(1, 2) for part in self.projection(x).chunk(3, dim=-1)]
        y = torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        return self.output(y.transpose(1, 2).reshape(x.shape))


class Gpt(torch.nn.Module):
    def __init__(self, vocabulary=31, width=32, length=16):
        super().__init__()
        self.tokens, self.positions = torch.nn.Embedding(vocabulary, width), torch.nn.Embedding(length, width)
        self.attention, self.head = Attention(width), torch.nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens, targets):
        positions = torch.arange(tokens.shape[1], dtype=torch.long, device=tokens.device)
        x = self.tokens(tokens) + self.positions(positions)
        logits = self.head(x + self.attention(x))
        return cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def gpt(on_gpus):
    """In the style of nanoGPT's train.py."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="nccl")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args([] if on_gpus else ["--backend=gloo", "--device=cpu"])
    dist.init_process_group(backend=options.backend)
    rank, device = int(os.environ["RANK"]), options.device
    if "cuda" in device:
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    torch.manual_seed(1337 + rank)
    torch.backends.cuda.matmul.allow_tf32 = True
    device_type = "cuda" if "cuda" in device else "cpu"
    if on_gpus:
        dtype = "bfloat16" if torch.cuda.is_available() and torch.cuda.is_bf16_supported() else "float16"
        assert dtype == "bfloat16"
    context = torch.amp.autocast(device_type=device_type, dtype=torch.bfloat16)
    text = torch.randint(0, 31, (2000,))

    def batch():
        starts = torch.randint(len(text) - 17, (4,))
        x, y = (torch.stack([text[start + shift : start + shift + 16] for start in starts]) for shift in (0, 1))
        if device_type == "cuda":
            return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)
        return x.to(device), y.to(device)

    model = Gpt()
    model.to(device)
    scaler = torch.amp.GradScaler(device_type, enabled=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), fused=True)
    model = DDP(model, device_ids=[int(os.environ["LOCAL_RANK"])] if on_gpus else None)
    for _ in range(5):
        for micro_step in range(2):
            model.require_backward_grad_sync = micro_step == 1
            with context:
                loss = model(*batch()) / 2
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
    return digest(model.parameters()), loss.item().hex()


class Trainer:
    """In the style of pytorch/examples, distributed/ddp-tutorial-series/multigpu_torchrun.py."""

    def __init__(self, model, loader, optimizer, on_gpus):
        self.on_gpus, self.gpu_id = on_gpus, int(os.environ["LOCAL_RANK"])
        self.model = model.to(self.gpu_id) if on_gpus else model
        self.loader, self.optimizer = loader, optimizer
        self.model = DDP(self.model, device_ids=[self.gpu_id]) if on_gpus else DDP(self.model)

    def train(self, epochs):
        for epoch in range(epochs):
            self.loader.sampler.set_epoch(epoch)
            for source, targets in self.loader:
                if self.on_gpus:
                    source, targets = source.to(self.gpu_id), targets.to(self.gpu_id)
                self.optimizer.zero_grad()
                loss = cross_entropy(self.model(source), targets)
                loss.backward()
                self.optimizer.step()
        return loss


def trainer(on_gpus):
    if on_gpus:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(backend="nccl" if on_gpus else "gloo")
    torch.manual_seed(0)
    model = torch.nn.Linear(24, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = samples()
    loader = torch.utils.data.DataLoader(
        data, batch_size=8, pin_memory=on_gpus, shuffle=False, sampler=torch.utils.data.DistributedSampler(data))
    loss = Trainer(model, loader, optimizer, on_gpus).train(3)
    return digest(model.parameters()), loss.item().hex()


def accelerate(on_gpus, precision="bf16"):
    from accelerate import Accelerator
    from accelerate.utils import set_seed

    accelerator = Accelerator(cpu=not on_gpus, mixed_precision=precision, gradient_accumulation_steps=2)
    assert accelerator.device.type == ("cuda" if on_gpus else "cpu")
    set_seed(7)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = torch.utils.data.DataLoader(samples(), batch_size=8, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        with accelerator.accumulate(model):
            output = model(x)
            loss = cross_entropy(output, y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    metrics = accelerator.gather_for_metrics(output.detach())
    return digest(model.parameters()), accelerator.reduce(loss.detach(), "mean").item().hex(), digest([metrics])


def fsdp2(on_gpus):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    device = torch.device("cuda" if on_gpus else "cpu", int(os.environ["LOCAL_RANK"]) if on_gpus else None)
    if on_gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpus else "gloo")
    torch.manual_seed(0)
    mesh = dist.device_mesh.init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("shard",))
    with device if on_gpus else contextlib.nullcontext():
        model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(33, 33), torch.nn.GELU()) for _ in range(3)))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for part in [*model, model]:
        fully_shard(part, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    numbers = torch.Generator(device=device).manual_seed(100 + dist.get_rank())
    for _ in range(6):
        loss = model(torch.randn(16, 33, generator=numbers, device=device)).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return digest([parameter.full_tensor() for parameter in model.parameters()]), loss.item().hex()


def spawned(rank, size):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size))
    report(trainer(True))


def report(result):
    sys.stdout.write(f"result {os.environ['RANK']} {' '.join(map(str, result))}\n")
    sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[1] == "spawn":  # as the tutorials of torch do
        os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=sys.argv[2])
        size = torch.cuda.device_count()
        torch.multiprocessing.start_processes(spawned, args=(size,), nprocs=size, join=True, start_method="fork")
    else:
        report(globals()[sys.argv[1]](sys.argv[2] == "cuda"))
