"""The known faults of Accelerate 1.15 that a script can show, each reproduced.

A rank of a group (rank_group.py): items are names of FAULTS, answers what this rank saw. recorded_faults_test.cpp compares them
with ours; live.py checks that Accelerate still answers as recorded.
"""
import shutil
import tempfile

import rank_group

SEED = 7
TIMEOUT = 30  # one of them hangs
SWEEP_SIZE, SWEEP_RANKS, SWEEP_LENGTHS = 6, 6, range(26)  # batch sizes from 1, ranks from 1


# --- a rank ----------------------------------------------------------------------------------------------------------


def prepared(*objects, **options):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, **options)
    return accelerator, accelerator.prepare(*objects)


def numbers(length, **options):
    import torch

    return torch.utils.data.DataLoader(torch.arange(length), **options)


def resume(use_seedable_sampler):
    """24 samples, shuffled: saved in epoch 1 after 2 batches, then loaded into new objects."""
    from accelerate import DataLoaderConfiguration, skip_first_batches
    from accelerate.state import AcceleratorState, GradientState
    from accelerate.utils import broadcast_object_list, set_seed

    def start():
        AcceleratorState._reset_state(False)
        GradientState._reset_state()
        config = DataLoaderConfiguration(use_seedable_sampler=use_seedable_sampler)
        set_seed(SEED)
        return prepared(numbers(24, batch_size=2, shuffle=True), dataloader_config=config)

    def read(loader):
        return [batch.tolist() for batch in loader]

    _, loader = start()
    uninterrupted = [read(loader) for _ in range(3)]

    accelerator, loader = start()
    folder = broadcast_object_list([tempfile.mkdtemp()])[0]
    read(loader)
    for step, _ in enumerate(loader):
        if step == 1:
            accelerator.save_state(folder)
            break
    accelerator, loader = start()
    accelerator.load_state(folder)
    resumed, following = read(skip_first_batches(loader, 2)), read(loader)
    accelerator.wait_for_everyone()
    shutil.rmtree(folder, ignore_errors=True)
    return {"uninterrupted": uninterrupted, "resumed": resumed, "next": following}


def cadence_around_an_evaluation():
    """6 micro-batches, 4 to a window; during the third there is an evaluation, which is left at once or read to its end."""
    import torch

    def cadence(leaves):
        ranks = 2
        net, train, evaluation = torch.nn.Linear(1, 1), numbers(6 * ranks, batch_size=1), numbers(4 * ranks, batch_size=1)
        accelerator, (model, train, evaluation) = prepared(net, train, evaluation, gradient_accumulation_steps=4)
        synchronised = []
        for step, _ in enumerate(train):
            with accelerator.accumulate(model):
                synchronised.append(accelerator.sync_gradients)
                accelerator.backward(model(torch.ones(1, 1)).sum())
                for _ in evaluation if step == 2 else ():
                    if leaves:
                        break
        return synchronised

    return {"left_by_break": cadence(True), "read_to_its_end": cadence(False)}


def short_window():
    """5 micro-batches whose gradient is 1, 4 to a window: the gradient that the optimizer gets at each of its steps."""
    import torch

    net = torch.nn.Linear(1, 1, bias=False)
    accelerator, (model, optimizer, loader) = prepared(
        net, torch.optim.SGD(net.parameters(), lr=0.0), numbers(5 * 2, batch_size=1), gradient_accumulation_steps=4
    )
    gradients = []
    for _ in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.ones(1, 1)).sum())
            if accelerator.sync_gradients:
                gradients.append(net.weight.grad.item())
            optimizer.step()
            optimizer.zero_grad()
    return {"gradients": gradients}


def sampler_of_another_length():
    """A sampler of 7 indices over a dataset of 10: what gather_for_metrics returns."""
    accelerator, loader = prepared(numbers(10, batch_size=2, sampler=[9, 7, 5, 3, 1, 0, 2]))
    return {"gathered": [sample for batch in loader for sample in accelerator.gather_for_metrics(batch).tolist()]}


def stream_of_one_sample(gathers):
    """A stream of 1 sample, dispatched to 4 ranks. In a gather, ranks with a sample wait for ranks without."""
    import torch

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(torch.arange(1))

    accelerator, loader = prepared(torch.utils.data.DataLoader(Stream(), batch_size=4))
    batches, gathered = [], []
    for batch in loader:
        batches.append(batch.tolist())
        if gathers:
            gathered += accelerator.gather_for_metrics(batch).tolist()
    return {"batches": batches, "gathered": gathered}


# --- sweeps over shards, without processes -----------------------------------------------------------------------------


def sweep(makes, batch_sizes_to_split=lambda batch_size, ranks: batch_size % ranks == 0):
    """`makes(length, batch_size, split, ranks)` gives (names of what went wrong, per configuration), counted by name."""
    counts = {}
    for length in SWEEP_LENGTHS:
        for batch_size in range(1, SWEEP_SIZE + 1):
            for ranks in range(1, SWEEP_RANKS + 1):
                for split in (False, True) if batch_sizes_to_split(batch_size, ranks) else (False,):
                    for names in makes(length, batch_size, split, ranks):
                        for name in ("configurations", *names):
                            counts[name] = counts.get(name, 0) + 1
    return counts


def sweep_of_batch_sampler_shards():
    """How often the length of a shard is not its number of batches, and how often its content is wrong."""
    from accelerate.data_loader import BatchSamplerShard
    from torch.utils.data import BatchSampler, SequentialSampler

    def makes(length, batch_size, split, ranks):
        for even in (False, True):
            for drop_last in (False, True):
                inner = BatchSampler(SequentialSampler(range(length)), batch_size, drop_last)
                shards = [BatchSamplerShard(inner, ranks, rank, split, even) for rank in range(ranks)]
                batches = [list(map(list, shard)) for shard in shards]
                wrong = ["wrong_lengths" for shard, of_rank in zip(shards, batches) if len(shard) != len(of_rank)]
                if wrong and not (split and not even and not drop_last):
                    wrong.append("wrong_lengths_elsewhere")
                group = batch_size if split else batch_size * ranks
                if not holds(batches, length, group, even, drop_last):
                    wrong.append("wrong_contents")
                yield wrong

    return sweep(makes)


def holds(batches, length, group, even, drop_last):
    """Whether the shards hold 0 .. length - 1 (step by step, and in each step rank by rank) and the end is marked."""
    steps = max(map(len, batches))
    stream = [sample for step in range(steps) for of_rank in batches for sample in (of_rank[step] if step < len(of_rank) else [])]
    if drop_last:
        return stream == list(range(length - length % group))
    return stream == [place % length for place in range(length + (-length % group if even else 0))]


def sweep_of_iterable_shards():
    """How often the length of a shard is not its number of samples, and how often it is empty without an error."""
    from accelerate.data_loader import IterableDatasetShard

    def makes(length, batch_size, split, ranks):
        for drop_last in (False, True):
            shards = [IterableDatasetShard(range(length), batch_size, drop_last, ranks, rank, split) for rank in range(ranks)]
            samples = [list(shard) for shard in shards]
            wrong = ["wrong_lengths" for shard, of_rank in zip(shards, samples) if len(shard) != len(of_rank)]
            if wrong and not split:
                wrong.append("wrong_lengths_without_split")
            if length > 0 and not drop_last and not any(samples):
                wrong.append("empty")
                if not (split and batch_size == 1 and ranks > 1):
                    wrong.append("empty_elsewhere")
            if split and batch_size == 1 and ranks > 1 and length > 0 and not drop_last:
                wrong.append("split_of_batch_size_1")
            yield wrong

    return sweep(makes, lambda batch_size, ranks: batch_size % ranks == 0 or batch_size == 1)


def weights_in_float8():
    """Which weights of four Linear layers a step of the default recipe changes; those between the first and the last are in float8."""
    import torch
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(True)
    torch.manual_seed(SEED)
    net = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(4)))
    weights = [layer.weight for layer in net]
    before = [weight.detach().clone() for weight in weights]
    accelerator, (model, optimizer) = prepared(net, torch.optim.SGD(net.parameters(), 0.1), mixed_precision="fp8")
    accelerator.backward(model(torch.randn(4, 16)).square().mean())
    optimizer.step()
    return {"changed": [not weight.equal(old) for weight, old in zip(weights, before)]}


def no_grad_of_hooks():
    """Whether the output of a module has gradients: with a hook that switches them off, and after another hook was appended."""
    import torch
    from accelerate.hooks import ModelHook, add_hook_to_module

    hook = ModelHook()
    hook.no_grad = True
    layer = add_hook_to_module(torch.nn.Linear(2, 2), hook)
    alone = layer(torch.ones(2)).requires_grad
    add_hook_to_module(layer, ModelHook(), append=True)
    return {"requires_grad": [alone, layer(torch.ones(2)).requires_grad]}


# --- all of them -------------------------------------------------------------------------------------------------------

FAULTS = {  # name: (ranks, what each of them does)
    "R1_resume_with_seedable_sampler": (2, lambda: resume(True)),
    "R2_resume_with_default_sampler": (2, lambda: resume(False)),
    "R3_cadence_around_an_evaluation": (2, cadence_around_an_evaluation),
    "R4_short_window": (2, short_window),
    "R5_sampler_of_another_length": (2, sampler_of_another_length),
    "R6_stream_of_one_sample": (4, lambda: stream_of_one_sample(gathers=False)),
    "R6_gather_of_one_sample": (4, lambda: stream_of_one_sample(gathers=True)),
    "R8_sweep_of_batch_sampler_shards": (1, sweep_of_batch_sampler_shards),
    "R7_R9_sweep_of_iterable_shards": (1, sweep_of_iterable_shards),
    "R10_weights_in_float8": (1, weights_in_float8),
    "R11_no_grad_of_hooks": (1, no_grad_of_hooks),
}


def answers():
    """Name -> what each rank answered; "no answer" if the group hung or lost a connection."""
    found = {}
    for ranks in sorted({ranks for ranks, _ in FAULTS.values()}):
        names = [name for name, (of_fault, _) in FAULTS.items() if of_fault == ranks]
        for name, answer in zip(names, rank_group.walk(__file__, ranks, names, TIMEOUT)):
            found[name] = answer
            if "failure" in answer:
                found[name] = "no answer" if "no answer" in answer["failure"] else answer["failure"]
            elif any(of_rank.get("error") == "RuntimeError" for of_rank in answer if isinstance(of_rank, dict)):
                found[name] = "no answer"  # the connection to a peer was closed, so the rank did not wait
    return {name: found[name] for name in FAULTS}


if __name__ == "__main__":
    rank_group.serve(lambda name: FAULTS[name][1]())
