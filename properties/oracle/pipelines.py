"""Tables of torch.distributed.pipelining; pipeline_answers.cpp is the same in C++.

A request has "schedule", "stages", "ranks" and "micro_batches". An answer has "computations" and "messages": the lines of the table in
torch's CSV format, a list per rank, without and with messages. Idle steps, which torch keeps in some tables, are left out.
Torch 2.11 prints a table of 1F1B that it does not run: the last stage begins with the second micro-batch. So 1f1b is not compared.
"""
from torch.distributed.pipelining import schedules
from torch.distributed.pipelining._utils import generate_stage_to_rank_mapping

SCHEDULES = {
    "gpipe": schedules.ScheduleGPipe,
    "interleaved_1f1b": schedules.ScheduleInterleaved1F1B,
    "zb_h1": schedules.ScheduleInterleavedZeroBubble,
    "interleaved_zero_bubble": schedules.ScheduleInterleavedZeroBubble,
    "zbv": schedules.ScheduleZBVZeroBubble,
    "dualpipe_v": schedules.ScheduleDualPipeV,
}


def random_request(rng):
    """Sizes for which torch has the schedule."""
    name, ranks = rng.choice(sorted(SCHEDULES)), rng.randrange(1, 9)
    per_rank = 1 if name in ("gpipe", "zb_h1") else 2 if name in ("zbv", "dualpipe_v") else rng.randrange(1, 5)
    micro_batches = rng.randrange(1, 25)
    if name in ("interleaved_1f1b", "zb_h1", "interleaved_zero_bubble"):
        micro_batches -= micro_batches % max(1, micro_batches // ranks)
    if name == "dualpipe_v":
        micro_batches = max(micro_batches, ranks * per_rank)
    return {"schedule": name, "stages": ranks * per_rank, "ranks": ranks, "micro_batches": micro_batches}


def table_of(request):
    # Without a schedule's stages, which need a model and a process group.
    schedule = object.__new__(SCHEDULES[request["schedule"]])
    ranks, micro_batches = request["ranks"], request["micro_batches"]
    schedule.pp_group_size, schedule._n_microbatches = ranks, micro_batches
    schedule.num_stages = schedule._num_stages = request["stages"]
    schedule.n_local_stages = request["stages"] // ranks
    schedule.number_of_rounds = max(1, micro_batches // ranks)
    schedule.microbatches_per_round = micro_batches // schedule.number_of_rounds
    if request["schedule"] == "gpipe":
        return schedule._get_pipeline_order()
    return {rank: schedule._calculate_single_rank_operations(rank) for rank in range(ranks)}


def answer(request):
    table = table_of(request)
    table = {rank: [action for action in table[rank] if action is not None and action.computation_type != schedules.REDUCE_GRAD] for rank in table}
    computations = [[str(action) for action in table[rank]] for rank in sorted(table)]
    placement = "v" if request["schedule"] in ("zbv", "dualpipe_v") else "loop"
    rank_of = generate_stage_to_rank_mapping(request["ranks"], request["stages"], placement)
    complete = schedules._add_send_recv(table, lambda stage: rank_of[stage], request["stages"])
    return {"computations": computations, "messages": [[str(action) for action in complete[rank]] for rank in sorted(complete)]}


def difference(theirs, ours):
    """The first cell that differs; None if none does."""
    for key in ("computations", "messages"):
        for rank, (their, our) in enumerate(zip(theirs[key], ours[key], strict=True)):
            for place, cells in enumerate(zip(their, our)):
                if cells[0] != cells[1]:
                    return f"{key}, rank {rank}, action {place}: {cells[0]} and {cells[1]}"
            if len(their) != len(our):
                return f"{key}, rank {rank}: {len(their)} and {len(our)} actions"
    return None
