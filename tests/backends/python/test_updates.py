"""When replicas are compared: after every update of a data parallel model, however the program makes it."""

import pytest
from conftest import results_of, simulate_text

BEGIN = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
"""
MODEL = """
model = DistributedDataParallel(net)
torch.manual_seed(rank)
inputs = torch.randn(32, 4)
sgd = torch.optim.SGD(model.parameters(), lr=0.1)
"""
END = """
print("result", rank)
"""
# Classes as programs define them.
WRAPPERS = """
class Sam(torch.optim.Optimizer):
    def __init__(self, base):
        super().__init__(base.param_groups, {})
        self.base = base
        self.param_groups = base.param_groups
    def step(self, closure):
        closure()
        for group in self.param_groups:
            for p in group["params"]: p.data.add_(p.grad, alpha=0.01)
        self.base.zero_grad()
        closure()
        for group in self.param_groups:
            for p in group["params"]: p.data.sub_(p.grad, alpha=0.01)
        self.base.step()

class Lookahead(torch.optim.Optimizer):
    def __init__(self, base):
        self.base, self.param_groups = base, base.param_groups
        self.slow = [[p.detach().clone() for p in group["params"]] for group in self.param_groups]
        self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks = {}, {}
    def step(self):
        self.base.step()
        for group, slows in zip(self.param_groups, self.slow):
            for p, slow in zip(group["params"], slows): p.data.copy_(slow.lerp_(p.data, 0.5))
    def zero_grad(self): self.base.zero_grad()

class Container(torch.optim.Optimizer):
    def __init__(self, optimizers):
        super().__init__([p for o in optimizers for group in o.param_groups for p in group["params"]], {})
        self.optimizers = optimizers
    def step(self):
        for optimizer in self.optimizers: optimizer.step()
"""
LOOP = """
for batch in inputs.split(4):
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def run_text(folder, *parts, ranks=2):
    return simulate_text(folder, ranks, "".join(parts))


RIGHT = {
    "sam": WRAPPERS + """
optimizer = Sam(sgd)
for batch in inputs.split(4):
    def closure(): model(batch).sum().backward()
    optimizer.step(closure)
    optimizer.zero_grad()
""",
    "lookahead": WRAPPERS + "optimizer = Lookahead(sgd)" + LOOP,
    "container": WRAPPERS + "optimizer = Container([torch.optim.SGD([p], lr=0.1) for p in net.parameters()])" + LOOP,
    "zero": """
from torch.distributed.optim import ZeroRedundancyOptimizer
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1)
""" + LOOP,
    "own_zero": """
for batch in inputs.split(4):
    model(batch).sum().backward()
    parameters = list(net.parameters())
    torch.optim.SGD(parameters[rank::size], lr=0.1).step()
    for number, parameter in enumerate(parameters):
        dist.broadcast(parameter.data, number % size)
    model.zero_grad()
""",
    "post_local_sgd": """
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
alone = [dist.new_group([other]) for other in range(size)][rank]
model.register_comm_hook(PostLocalSGDState(None, alone, start_localSGD_iter=2), post_localSGD_hook)
optimizer = PostLocalSGDOptimizer(sgd, PeriodicModelAverager(period=3, warmup_steps=2))
""" + LOOP,
    "local_sgd": """
from accelerate import Accelerator
from accelerate.local_sgd import LocalSGD
with LocalSGD(accelerator=Accelerator(cpu=True), model=model, local_sgd_steps=3) as local:
    for batch in inputs.split(4):
        model(batch).sum().backward()
        sgd.step()
        sgd.zero_grad()
        local.step()
optimizer = sgd
""" + LOOP,
    "uneven_inputs": """
from torch.distributed.algorithms.join import Join
inputs, optimizer = inputs[: 16 + 8 * rank], sgd
with Join([model]):
""" + LOOP.replace("\n", "\n    ") + """
inputs = inputs[:16]
""" + LOOP,
    "uneven_inputs_of_zero": """
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
inputs = inputs[: 16 + 8 * rank]
with Join([model, optimizer]):
""" + LOOP.replace("\n", "\n    ") + """
inputs = inputs[:16]
""" + LOOP,
    "in_the_backward_pass": """
optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in net.parameters()}
def hook(state, bucket):
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    def update(done):
        for p, gradient in zip(bucket.parameters(), bucket.gradients()):
            p.grad = gradient / size
            optimizers[p].step()
            p.grad = None
        return done.value()[0]
    return future.then(update)
model.register_comm_hook(None, hook)
for batch in inputs.split(4):
    model(batch).sum().backward()
""",
    "a_step_that_raises": WRAPPERS + """
def refuse(*_): raise ValueError
optimizer = Container([sgd])
model(inputs).sum().backward()
handle = sgd.register_step_pre_hook(refuse)
try: optimizer.step()
except ValueError: handle.remove()
""" + LOOP,
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_update_is_no_mistake(tmp_path, name):
    run = run_text(tmp_path, BEGIN, MODEL, RIGHT[name], END)
    assert run.code == 0, run.error
    assert len(results_of(run.output)) == 2


def test_ignored_parameters_are_not_compared(tmp_path):
    text = "net._ddp_params_and_buffers_to_ignore = ['2.weight']\n" + MODEL + "optimizer = sgd\n" + LOOP
    run = run_text(tmp_path, BEGIN, text, END)
    assert run.code == 0, run.error
    run = run_text(tmp_path, BEGIN, text, "net[2].bias.data += rank\nmodel(inputs)\n" + LOOP, END)
    assert run.code == 3 and "first in parameter 2.bias" in run.error, run.error


WRONG = {
    "a_step_without_synchronization": ("optimizer_step #0", "0.weight", """
model.require_backward_grad_sync = False
optimizer = sgd
""" + LOOP),
    "a_step_in_no_sync": ("optimizer_step #0", "0.weight", """
optimizer = sgd
with model.no_sync():
""" + LOOP.replace("\n", "\n    ")),
    "a_wrapped_optimizer": ("optimizer_step #8", "2.bias", WRAPPERS + "optimizer = Container([sgd])" + LOOP + """
model(inputs).sum().backward()
net[2].bias.grad += rank
optimizer.step()
"""),
    "a_shard_that_is_not_sent": ("optimizer_step #0", "0.weight", """
model(inputs).sum().backward()
torch.optim.SGD(list(net.parameters())[rank::size], lr=0.1).step()
"""),
    "after_uneven_inputs": ("optimizer_step #6", "0.bias", RIGHT["uneven_inputs"].rpartition("inputs = inputs")[0] + """
net[0].bias.data += rank
model(inputs[:4]).sum().backward()
sgd.step()
"""),
    "averages_of_other_parameters": ("optimizer_step #", "0.weight", RIGHT["post_local_sgd"].replace(LOOP, "") + """
average = optimizer.averager.average_parameters
def wrong(params):
    average(params)
    net[0].weight.data += rank
optimizer.averager.average_parameters = wrong
""" + LOOP),
}


@pytest.mark.parametrize("name", WRONG)
def test_replicas_that_part_are_named(tmp_path, name):
    step, parameter, text = WRONG[name]
    run = run_text(tmp_path, BEGIN, MODEL, text, END)
    assert run.code == 3, run.error
    assert step in run.error and f"first in parameter {parameter}" in run.error, run.error
