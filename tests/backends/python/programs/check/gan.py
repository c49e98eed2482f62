"""A GAN with two optimizers under Accelerate."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator
from accelerate.utils import set_seed

def main():
    set_seed(3)
    accelerator = Accelerator()
    real = torch.randn(128, 2) * 0.5 + 1
    loader = DataLoader(TensorDataset(real), batch_size=8, shuffle=True, drop_last=True)
    generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    critic = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
    opt_c = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
    generator, critic, opt_g, opt_c, loader = accelerator.prepare(generator, critic, opt_g, opt_c, loader)
    set_seed(5, device_specific=True)
    loss_of = nn.BCEWithLogitsLoss()
    for epoch in range(2):
        for (x,) in loader:
            z = torch.randn(len(x), 4)
            fake = generator(z).detach()
            both = critic(torch.cat([x, fake]))
            target = torch.cat([torch.ones(len(x), 1), torch.zeros(len(x), 1)])
            opt_c.zero_grad(); accelerator.backward(loss_of(both, target)); opt_c.step()
            z = torch.randn(len(x), 4)
            opt_g.zero_grad(); accelerator.backward(loss_of(critic(generator(z)), torch.ones(len(x), 1))); opt_g.step()
        accelerator.print("epoch", epoch)
main()
