"""What Hugging Face Accelerate does with a plan request: which sample every rank reads, step by step.

A rank of a group (rank_group.py): items are requests of `sim-run plan`, answers what this rank saw; `combine` makes one
answer of them. Where Accelerate 1.15 has a known fault, the answer holds what follows from the source, or NOT_COMPARED if
the source does not determine it; a request that would hang is not run.
"""
from concurrent.futures import ThreadPoolExecutor

import rank_group

NOT_COMPARED = "not compared"
DEFAULTS = {
    "iterable": False, "drop_last": False, "shuffle": False, "seed": 0, "data_seed": None, "epochs": 1, "split_batches": False,
    "even_batches": True, "dispatch_batches": None, "use_seedable_sampler": False, "skip_batches": 0,
}  # fmt: skip


# --- a rank ----------------------------------------------------------------------------------------------------------


def read_plan(request):
    import torch
    from accelerate import Accelerator, DataLoaderConfiguration, skip_first_batches
    from accelerate.utils import set_seed

    class Numbers(torch.utils.data.Dataset):
        def __len__(self):
            return request["length"]

        def __getitem__(self, index):
            return torch.tensor(index)

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(torch.arange(request["length"]))

    keys = ("split_batches", "dispatch_batches", "even_batches", "use_seedable_sampler", "data_seed")
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**{key: request[key] for key in keys}))
    set_seed(request["seed"])
    options = {key: request[key] for key in ("batch_size", "drop_last", "shuffle")}
    loader = accelerator.prepare(torch.utils.data.DataLoader(Stream() if request["iterable"] else Numbers(), **options))
    epochs = []
    for epoch in range(request["epochs"]):
        skips = epoch == 0 and request["skip_batches"] > 0
        seen = {"batches": [], "ends": [], "gathered": []}
        for batch in skip_first_batches(loader, request["skip_batches"]) if skips else loader:
            seen["batches"].append(batch.tolist())
            seen["ends"].append(accelerator.gradient_state.end_of_dataloader)
            if can_gather(request) and gathers_right(request, epoch):
                seen["gathered"].append(accelerator.gather_for_metrics(batch).tolist())
        if skips:  # the loader does not know that an epoch is over, and would repeat its order
            loader.set_epoch(epoch + 1)
        epochs.append(seen)
    return epochs


# --- what Accelerate can be asked, and where it is wrong -------------------------------------------------------------


def dispatches(request):
    return request["iterable"] if request["dispatch_batches"] is None else request["dispatch_batches"]


def can_gather(request):
    """Otherwise ranks may have different numbers of batches, and the answer holds null."""
    return request["even_batches"] or request["ranks"] == 1 or request["dispatch_batches"] is True


def gathers_right(request, epoch):
    """False for two faults: loaders of skip_first_batches and sharded streams do not know their remainder."""
    skips = epoch == 0 and request["skip_batches"] > 0
    sharded_stream = request["iterable"] and not dispatches(request)
    return request["ranks"] == 1 or not (skips or sharded_stream)


def group_size(request):
    """The number of samples of one step over all ranks."""
    return request["batch_size"] * (1 if request["split_batches"] else request["ranks"])


def kept(request):
    """How many samples are not dropped."""
    return request["length"] - (request["length"] % group_size(request) if request["drop_last"] else 0)


def issued(request, epoch):
    """How many different samples the ranks are given in an epoch: all but those skipped and those dropped."""
    return max(0, kept(request) - (request["skip_batches"] * group_size(request) if epoch == 0 else 0))


def is_refused(request):
    """Whether torch's DataLoader rejects the request."""
    return request["batch_size"] < 1 or (request["iterable"] and request["shuffle"])


def can_be_asked(request):
    """With a map-style source, the dispatcher of skip_first_batches skips batches of rank 0 only, fills up from the first batch
    that was not skipped, and raises if nothing is left."""
    faulty = dispatches(request) and not request["iterable"] and request["skip_batches"] > 0
    return not faulty or (request["ranks"] == 1 and issued(request, 0) > 0)


def known_answer(request):
    """The answer if Accelerate is not asked because it is wrong or hangs. None: ask it."""
    if is_refused(request):
        return None
    if request["split_batches"] and request["batch_size"] % request["ranks"] != 0:
        return {"error": "ValueError"}  # with batch size 1 Accelerate's check passes, and the shards are empty
    torch_refuses = request["shuffle"] and request["length"] == 0
    # A dispatcher raises if the source has no batch; with fewer rows than ranks, some ranks get none.
    is_too_small = dispatches(request) and kept(request) < request["ranks"]
    if not torch_refuses and not is_too_small:
        return None
    return {"epochs": [_small_epoch(request, epoch) for epoch in range(request["epochs"])]}


def _small_epoch(request, epoch):
    if issued(request, epoch) == 0:
        return _epoch([[] for _ in range(request["ranks"])], [], [] if can_gather(request) else None)
    ids = NOT_COMPARED if request["shuffle"] else [list(range(request["length"]))]
    return _epoch(NOT_COMPARED, [True], ids if can_gather(request) else None)


def _epoch(ranks, ends, gathered):
    return {"ranks": ranks, "end_of_dataloader": ends, "gathered_for_metrics": gathered}


# --- one answer ------------------------------------------------------------------------------------------------------


def combine(request, answers):
    """`answers`: what the ranks of a group answered, as rank_group.walk yields it."""
    if isinstance(answers, dict):
        return answers
    errors = {answer["error"] for answer in answers if isinstance(answer, dict)}
    if errors:
        everyone = len(errors) == 1 and all(isinstance(answer, dict) for answer in answers)
        return {"error": errors.pop()} if everyone else {"failure": f"ranks disagree: {answers}"}
    return {"epochs": [_combine_epoch(request, epoch, seen) for epoch, seen in enumerate(zip(*answers))]}


def _combine_epoch(request, epoch, seen):
    ranks = [of_rank["batches"] for of_rank in seen]
    gathered = None
    if can_gather(request):
        gathered = seen[0]["gathered"] if gathers_right(request, epoch) else in_order(ranks, issued(request, epoch))
    return _epoch(ranks, seen[0]["ends"], gathered)


def in_order(ranks, count):
    """The samples of each step, rank 0's first, without the padding after the last of `count`."""
    steps = []
    for batches in zip(*ranks):
        steps.append([sample for batch in batches for sample in batch][:count])
        count -= len(steps[-1])
    return steps


def answers(requests, timeout=rank_group.ITEM_SECONDS):
    """Accelerate's answers, in the order of the requests; each goes to a group of as many ranks as it asks for."""
    requests = [DEFAULTS | request for request in requests]
    found = [known_answer(request) for request in requests]

    def ask(ranks):
        asked = [index for index, request in enumerate(requests) if request["ranks"] == ranks and found[index] is None]
        group = rank_group.walk(__file__, ranks, [requests[index] for index in asked], timeout)
        for index, of_ranks in zip(asked, group):
            found[index] = combine(requests[index], of_ranks)

    with ThreadPoolExecutor(2) as pool:  # so that one group computes while another starts or waits
        list(pool.map(ask, sorted({request["ranks"] for request in requests}, reverse=True)))
    return found


if __name__ == "__main__":
    rank_group.serve(read_plan)
