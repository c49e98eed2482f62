"""Random requests for `sim-run plan`: every option, and lengths around every boundary."""
import plan


def random_request(rng, ranks=None):
    ranks = ranks or random_ranks(rng)
    split = rng.random() < 0.3
    batch_size = rng.randint(1, rng.choice([4, 16, 16, 64]))
    if split and rng.random() < 0.9:  # otherwise it may not divide, which is an error
        batch_size = ranks * rng.randint(1, max(1, 16 // ranks))
    iterable = rng.random() < 0.3
    shuffle = not iterable and rng.random() < 0.6
    request = {
        "iterable": iterable,
        "batch_size": batch_size,
        "drop_last": rng.random() < 0.25,
        "shuffle": shuffle,
        "seed": rng.randrange(1 << rng.choice([4, 16, 32])),
        "data_seed": rng.randrange(1 << rng.choice([4, 16, 40])) if shuffle and rng.random() < 0.3 else None,
        "epochs": rng.choice([0, 1, 1, 1, 1, 2, 2, 2, 3, 3]),
        "ranks": ranks,
        "split_batches": split,
        "even_batches": rng.random() < 0.75,
        "dispatch_batches": rng.choice([None, None, False, True]),
        "use_seedable_sampler": rng.random() < 0.5,
        "skip_batches": rng.choice([0, 0, 0, 0, 1, 1, 2, 3, 40]),
    }
    request = {"length": random_length(rng, request)} | request
    if rng.random() < 0.03:
        return request | rng.choice([{"batch_size": 0}, {"batch_size": -2}, {"iterable": True, "shuffle": True}])
    return request if plan.can_be_asked(request) else request | {"skip_batches": 0}


def random_ranks(rng):
    """Mostly few ranks: more of them are slower and show little more."""
    chance = rng.random()
    if chance < 0.75:
        return rng.randint(1, 4)
    return rng.randint(5, 8) if chance < 0.95 else rng.choice([9, 16])


def random_length(rng, request):
    ranks, batch_size, group = request["ranks"], request["batch_size"], plan.group_size(request)
    boundary = rng.choice([0, batch_size, group, 2 * group, rng.randint(1, 5) * group, rng.randint(1, 5) * batch_size])
    near = boundary + rng.choice([-batch_size, -ranks, -1, 0, 0, 1, ranks, batch_size])
    return max(0, rng.choice([near, near, rng.randrange(0, 5 * group + 1), rng.randrange(0, ranks + 2)]))
