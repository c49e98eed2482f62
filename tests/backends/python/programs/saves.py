"""A training that saves, and goes on from its last state when it is started again: `saves.py FOLDER`."""

import os
import sys

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

folder = sys.argv[1]
accelerator = Accelerator(cpu=True)
set_seed(4)
model = torch.nn.Sequential(torch.nn.Linear(40, 20), torch.nn.Dropout(0.2), torch.nn.Linear(20, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
model, optimizer = accelerator.prepare(model, optimizer)
step = 0
if int(os.environ["TORCHELASTIC_RESTART_COUNT"]) > 0:
    step = max(int(name) for name in os.listdir(folder) if name.isdigit())
    accelerator.load_state(os.path.join(folder, str(step)))
while step < 12:
    loss = model(torch.randn(8, 40)).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    if step % 3 == 0:
        accelerator.wait_for_everyone()
        accelerator.save_state(os.path.join(folder, str(step)))
weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
print("result", accelerator.process_index, weights.sum().item().hex(), flush=True)
