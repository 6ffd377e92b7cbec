"""Matrices and vectors of one model have an optimizer each; both step one after the other."""

import torch
from helper import Net, batches, finish

torch.manual_seed(0)
model = Net()
matrices = torch.optim.SGD([weight for weight in model.parameters() if weight.dim() > 1], lr=1e-2)
vectors = torch.optim.AdamW([weight for weight in model.parameters() if weight.dim() == 1], lr=1e-3)
losses = []
for x, y in batches():
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    for optimizer in (matrices, vectors):
        optimizer.step()
        optimizer.zero_grad()
    losses.append(loss.item())
finish(losses, model)
