"""Accelerate, BatchNorm converted, a torch augmentation in workers, LR per epoch, mixed evaluation by plain all_gather."""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from accelerate import Accelerator
from accelerate.utils import set_seed
class Images(Dataset):
    def __init__(self, n, train): self.n, self.train = n, train
    def __len__(self): return self.n
    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        x = torch.randn(1, 8, 8, generator=g); y = int(x.mean() > 0)
        if self.train and torch.rand(1) < 0.5: x = x.flip(-1)
        return x, y
def main():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    set_seed(11)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    train = DataLoader(Images(130, True), batch_size=8, shuffle=True, num_workers=2)
    test = DataLoader(Images(37, False), batch_size=8)
    sched = torch.optim.lr_scheduler.StepLR(opt, 1, 0.5)
    model, opt, train, test = accelerator.prepare(model, opt, train, test)
    set_seed(11, device_specific=True)
    for epoch in range(2):
        model.train()
        for x, y in train:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                opt.step(); opt.zero_grad()
        sched.step()
        model.eval(); hits = []
        for x, y in test:
            with torch.no_grad(): hits.append(accelerator.gather_for_metrics((model(x).argmax(1) == y).float()))
        accelerator.print("accuracy", torch.cat(hits).mean().item(), len(torch.cat(hits)))
main()
