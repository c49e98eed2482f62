"""A small language model: plain DDP, gradient accumulation, clipping, a warm-up schedule, evaluation by all_reduce."""
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

class Text(Dataset):
    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(16, (count, 9), generator=generator)
    def __len__(self): return len(self.tokens)
    def __getitem__(self, index): return self.tokens[index, :-1], self.tokens[index, 1:]

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, 16)
    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.head(self.layer(self.embed(x), src_mask=mask))

def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = DDP(Model())
    torch.manual_seed(10 + rank)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    train, test = Text(256, 1), Text(40, 2)
    sampler = DistributedSampler(train, seed=5)
    loader = DataLoader(train, batch_size=8, sampler=sampler)
    test_loader = DataLoader(test, batch_size=8, sampler=DistributedSampler(test, shuffle=False))
    accumulation = 2
    total = 2 * len(loader) // accumulation
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: min((step + 1) / 4, max(0.0, 1 - step / total)))
    for epoch in range(2):
        sampler.set_epoch(epoch)
        model.train()
        for number, (x, y) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
            (loss / accumulation).backward()
            if (number + 1) % accumulation == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                opt.step(); sched.step(); opt.zero_grad()
        model.eval()
        sums = torch.zeros(2)
        with torch.no_grad():
            for x, y in test_loader:
                sums += torch.tensor([nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum").item(), y.numel()])
        dist.all_reduce(sums)
        if rank == 0: print(f"epoch {epoch}: loss {sums[0] / sums[1]:.4f}")
    dist.destroy_process_group()
if __name__ == "__main__": main()
