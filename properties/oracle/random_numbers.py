"""The first random numbers of every kind, under Python's torch and Hugging Face Accelerate.

A rank of a group (rank_group.py): an item is {"seed", "device_specific", "count", "use_seedable_sampler", "data_seed"}, the
answer a mapping from names to numbers, floats as hexadecimal. properties/gen/random_numbers.cpp is the same in C++; a new
kind has to be added to both.
"""
import rank_group

# Kinds whose numbers follow from the generator by integer arithmetic and one rounding, so that every CPU gives the same.
PORTABLE = (
    "rand", "rand_double", "rand_half", "rand_bfloat16", "randint", "randint_wide", "random_", "random_int32", "random_uint8",
    "random_float", "randperm", "bernoulli", "bernoulli_", "dropout", "native_dropout", "feature_dropout",
    "training loop", "workers", "persistent workers",
)  # fmt: skip


def kinds():
    import torch
    from torch import nn

    def of(method, *arguments, dtype=torch.float32):
        return lambda count: getattr(torch.empty(count, dtype=dtype), method)(*arguments)

    return {
        "rand": torch.rand,
        "rand_double": lambda count: torch.rand(count, dtype=torch.float64),
        "rand_half": lambda count: torch.rand(count, dtype=torch.float16),
        "rand_bfloat16": lambda count: torch.rand(count, dtype=torch.bfloat16),
        "randn": torch.randn,
        "randn_small": lambda count: torch.randn(7),  # fewer than 16 elements are drawn one by one; with an odd number, one is left over
        "randn_double": lambda count: torch.randn(count, dtype=torch.float64),
        "randn_bfloat16": lambda count: torch.randn(count, dtype=torch.bfloat16),
        "randn_complex": lambda count: torch.view_as_real(torch.randn(count, dtype=torch.complex64)).flatten(),
        "randint": lambda count: torch.randint(0, 1000, (count,)),
        "randint_wide": lambda count: torch.randint(-(1 << 40), 1 << 40, (count,)),
        "random_": of("random_", dtype=torch.int64),
        "random_int32": of("random_", dtype=torch.int32),
        "random_uint8": of("random_", dtype=torch.uint8),
        "random_float": of("random_"),
        "randperm": torch.randperm,
        "bernoulli": lambda count: torch.bernoulli(torch.full((count,), 0.3)),
        "bernoulli_": of("bernoulli_", 0.3),
        "dropout": lambda count: nn.functional.dropout(torch.ones(count), 0.3),
        "native_dropout": lambda count: torch.native_dropout(torch.ones(count), 0.3, True)[0],
        "feature_dropout": lambda count: torch.feature_dropout(torch.ones(count, 2, 1), 0.3, True).flatten(),
        "alpha_dropout": lambda count: torch.alpha_dropout(torch.ones(count), 0.3, True),
        "rrelu": lambda count: torch.rrelu(-torch.ones(count), 0.1, 0.9, True),
        "multinomial": lambda count: torch.multinomial(torch.arange(1.0, 10.0), count, True),
        "multinomial_once": lambda count: torch.multinomial(torch.arange(1.0, count + 1.0), count, False),
        "exponential_": of("exponential_", 1.7),
        "uniform_": of("uniform_", -2, 3),
        "normal_": of("normal_", 0.5, 2),
        "log_normal_": of("log_normal_", 0.3, 0.8),
        "cauchy_": of("cauchy_", 0.5, 2),
        "geometric_": of("geometric_", 0.2),
        "normal_of_means": lambda count: torch.normal(torch.arange(float(count)), torch.full((count,), 0.5)),
        "poisson": lambda count: torch.poisson(torch.full((count,), 4.5)),
        "binomial": lambda count: torch.binomial(torch.full((count,), 20.0), torch.full((count,), 0.3)),
        "gamma": lambda count: torch._standard_gamma(torch.full((count,), 2.5)),
        "dirichlet": lambda count: torch._sample_dirichlet(torch.full((count, 3), 0.7)).flatten(),
        "linear": lambda count: nn.Linear(3, count).weight.detach().flatten(),
        "conv": lambda count: nn.Conv2d(2, count, 3).bias.detach(),
        "embedding": lambda count: nn.Embedding(count, 2).weight.detach().flatten(),
        "xavier_normal_": lambda count: nn.init.xavier_normal_(torch.empty(count, 3)).flatten(),
        "kaiming_normal_": lambda count: nn.init.kaiming_normal_(torch.empty(count, 3)).flatten(),
    }


def numbers(request):
    from accelerate import Accelerator
    from accelerate.utils import set_seed

    Accelerator(cpu=True)  # device_specific seeds read the rank from it

    def seed():
        set_seed(request["seed"], device_specific=request["device_specific"])

    drawn = {}
    for name, draw in kinds().items():
        seed()
        drawn[name] = listed(draw(request["count"]))
    seed()
    for name, draw in kinds().items():
        drawn["in sequence: " + name] = listed(draw(request["count"]))
    drawn["training loop"] = training_loop(request, seed)
    drawn["workers"] = epochs_with_workers(request, seed, persistent=False)
    drawn["persistent workers"] = epochs_with_workers(request, seed, persistent=True)
    return drawn


def listed(tensor):
    return [value.hex() if isinstance(value, float) else value for value in tensor.tolist()]


def training_loop(request, seed):
    """The samples and draws of two shuffled epochs, each with an evaluation, and with a draw between every two steps."""
    import torch
    from accelerate import Accelerator, DataLoaderConfiguration
    from torch import nn

    config = DataLoaderConfiguration(use_seedable_sampler=request["use_seedable_sampler"], data_seed=request["data_seed"])
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    seed()
    model = nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    samples = torch.utils.data.TensorDataset(torch.arange(23))
    train = torch.utils.data.DataLoader(samples, batch_size=3, shuffle=True)
    evaluation = torch.utils.data.DataLoader(samples, batch_size=4)
    model, optimizer, train, evaluation = accelerator.prepare(model, optimizer, train, evaluation)
    seen = listed(torch.rand(1))
    for _ in range(2):
        model.train()
        for (ids,) in train:
            accelerator.backward(model(ids.float().unsqueeze(1)).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            seen += listed(ids) + listed(torch.rand(1)) + listed(torch.randint(0, 1 << 20, (1,)))
        model.eval()
        with torch.no_grad():
            for (ids,) in evaluation:
                seen += listed(accelerator.gather_for_metrics(ids)) + listed(torch.rand(1))
    return seen


def epochs_with_workers(request, seed, persistent):
    """Three shuffled epochs over samples that draw a number where they are read, with a draw after each epoch."""
    import torch
    from accelerate import Accelerator, DataLoaderConfiguration

    def draw(*_):
        return torch.empty((), dtype=torch.int64).random_()

    class RandomSamples(torch.utils.data.Dataset):
        def __len__(self):
            return 23

        def __getitem__(self, index):
            return index, draw()

    config = DataLoaderConfiguration(use_seedable_sampler=request["use_seedable_sampler"], data_seed=request["data_seed"])
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    seed()
    loader = accelerator.prepare(
        torch.utils.data.DataLoader(
            RandomSamples(), batch_size=3, shuffle=True, num_workers=2, persistent_workers=persistent, worker_init_fn=draw
        )
    )
    seen = []
    for _ in range(3):
        for ids, numbers in loader:
            seen += listed(ids) + listed(numbers)
        seen += listed(torch.rand(1))
    return seen


if __name__ == "__main__":
    rank_group.serve(numbers)
