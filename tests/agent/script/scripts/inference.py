"""A model that is evaluated and never trained."""

import torch
from helper import Net, finish, rows

torch.manual_seed(0)
model = Net().eval()
with torch.no_grad():
    losses = [model(x).sum().item() for x in rows().tensors[0].split(32)]
finish(losses, model)
