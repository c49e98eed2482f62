"""Plain DistributedDataParallel that saves in the middle of epochs and continues from what it finds."""
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    x = torch.randn(160, 4); y = x.sum(1, keepdim=True)
    model = DDP(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)))
    torch.manual_seed(100 + rank)
    opt = torch.optim.Adam(model.parameters(), lr=0.05)
    sched = torch.optim.lr_scheduler.StepLR(opt, 3, 0.5)
    sampler = DistributedSampler(x, seed=3)
    loader = DataLoader(TensorDataset(x, y), batch_size=8, sampler=sampler)
    epoch, done = 0, 0
    if os.path.exists("state.pt"):
        state = torch.load("state.pt", weights_only=False)
        model.module.load_state_dict(state["model"])
        opt.load_state_dict(state["opt"])
        sched.load_state_dict(state["sched"])
        epoch, done = state["epoch"], state["done"]
        torch.set_rng_state(state["rng"][rank])
    rngs = [None] * size
    while epoch < 3:
        sampler.set_epoch(epoch)
        state_before = torch.get_rng_state()
        for number, (a, b) in enumerate(loader):
            if number == 0: torch.set_rng_state(state_before)
            if number < done: continue
            loss = torch.nn.functional.mse_loss(model(a), b)
            opt.zero_grad(); loss.backward(); opt.step(); sched.step()
            if number == 2:
                dist.all_gather_object(rngs, torch.get_rng_state())
                if rank == 0:
                    torch.save({"model": model.module.state_dict(), "opt": opt.state_dict(), "sched": sched.state_dict(),
                                "epoch": epoch, "done": number + 1, "rng": rngs}, "state.tmp")
                    os.replace("state.tmp", "state.pt")
        epoch, done = epoch + 1, 0
    dist.destroy_process_group()
if __name__ == "__main__": main()
