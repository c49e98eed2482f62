"""Points in the unit cube; the label is the index of the largest coordinate. An ordinary program of Accelerate."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


def make_points(count):
    points = torch.rand(count, 3)
    return TensorDataset(points, points.argmax(1))


accelerator = Accelerator(cpu=True)
set_seed(42)
net = torch.nn.Sequential(torch.nn.Linear(3, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))
sgd = torch.optim.SGD(net.parameters(), lr=0.5)
train_loader = DataLoader(make_points(4000), batch_size=16, shuffle=True)
eval_loader = DataLoader(make_points(1003), batch_size=16)
model, optimizer, batches, eval_batches = accelerator.prepare(net, sgd, train_loader, eval_loader)

for epoch in range(3):
    for point, label in batches:
        accelerator.backward(cross_entropy(model(point), label))
        optimizer.step()
        optimizer.zero_grad()

    correct = seen = 0
    for point, label in eval_batches:
        with torch.no_grad():
            guess, truth = accelerator.gather_for_metrics((model(point).argmax(1), label))
        correct += (guess == truth).sum().item()
        seen += len(truth)
    accelerator.print(f"epoch {epoch}: accuracy {correct / seen:.3f} over {seen} samples")
