import torch
from accelerate import Accelerator
from accelerate.local_sgd import LocalSGD
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

# Parameters are averaged after every third update, and a metric drops what fills its last batch itself.
set_seed(1)
accelerator = Accelerator(cpu=True)
x = torch.randn(96, 4)
train = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4, shuffle=True)
test = DataLoader(TensorDataset(x[:18], x[:18].sum(1, keepdim=True)), batch_size=4)
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=1e-2)
model, opt, train, test = accelerator.prepare(model, opt, train, test)
for epoch in range(2):
    with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=3) as local:
        for a, b in train:
            loss = torch.nn.functional.mse_loss(model(a), b)
            accelerator.backward(loss)
            opt.step(); opt.zero_grad()
            local.step()
    seen, error = 0, 0.0
    for step, (a, b) in enumerate(test):
        with torch.no_grad():
            guess = model(a)
        guess, b = accelerator.gather((guess, b))
        if step == len(test) - 1:
            guess = guess[: len(test.dataset) - seen]
            b = b[: len(test.dataset) - seen]
        seen += len(b)
        error += (guess - b).square().sum().item()
    accelerator.print(f"epoch {epoch}: error {error / seen:.4f} of {seen}")
