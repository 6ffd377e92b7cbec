"""torch.compile in four ways: of the model, in place, of its blocks, of the function that computes the loss."""

import sys

import torch
from helper import Net, batches, finish

way = sys.argv[2]
torch.manual_seed(0)
model = called = Net(dropout=0.0)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
if way == "model":
    called = torch.compile(model, backend="aot_eager")
elif way == "in_place":
    model.compile(backend="aot_eager")
elif way == "blocks":
    for number, block in enumerate(model.blocks):
        model.blocks[number] = torch.compile(block, backend="aot_eager")


def compute(x, y):
    return torch.nn.functional.cross_entropy(called(x), y)


if way == "function":
    compute = torch.compile(compute, backend="aot_eager")
losses = []
for x, y in batches():
    optimizer.zero_grad()
    loss = compute(x, y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
finish(losses, model)
