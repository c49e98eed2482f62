"""Saves everything at the end of each epoch and in the middle, and continues from what it finds."""
import os, torch
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed

def main():
    set_seed(1)
    accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
    x = torch.randn(96, 8); y = (x.sum(1) > 0).long()
    train = DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 2))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.1, total_iters=len(train) * 3)
    model, opt, train, sched = accelerator.prepare(model, opt, train, sched)
    start = 0
    if os.path.exists("ckpt/done"):
        start = int(open("ckpt/done").read())
        accelerator.load_state(f"ckpt/epoch{start}")
    for epoch in range(start, 3):
        train.set_epoch(epoch)
        for a, b in train:
            loss = torch.nn.functional.cross_entropy(model(a), b)
            accelerator.backward(loss)
            opt.step(); sched.step(); opt.zero_grad()
        accelerator.save_state(f"ckpt/epoch{epoch + 1}")
        if accelerator.is_main_process:
            open("ckpt/done.tmp", "w").write(str(epoch + 1)); os.replace("ckpt/done.tmp", "ckpt/done")
        accelerator.wait_for_everyone()
main()
