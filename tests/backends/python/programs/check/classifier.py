import torch
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator
from accelerate.utils import set_seed

def main():
    set_seed(1)
    accelerator = Accelerator()
    x = torch.randn(200, 8); y = (x.sum(1) > 0).long()
    train = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
    test = DataLoader(TensorDataset(x[:50], y[:50]), batch_size=8)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 2))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.1, total_iters=len(train) * 2)
    model, opt, train, test, sched = accelerator.prepare(model, opt, train, test, sched)
    for epoch in range(2):
        model.train()
        for a, b in train:
            loss = torch.nn.functional.cross_entropy(model(a), b)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            opt.step(); sched.step(); opt.zero_grad()
        model.eval(); correct = 0; total = 0
        for a, b in test:
            with torch.no_grad():
                pred = model(a).argmax(1)
            pred, b = accelerator.gather_for_metrics((pred, b))
            correct += (pred == b).sum().item(); total += len(b)
        accelerator.print(f"epoch {epoch}: accuracy {correct / total:.4f} of {total}")
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        torch.save(accelerator.unwrap_model(model).state_dict(), "model.pt")
main()
