"""Mixed precision with a gradient scaler; the loss of the second iteration overflows, so that no optimizer steps in it.

With the word ``fine`` nothing overflows.
"""

import sys

import torch
from helper import Net, batches, finish

torch.manual_seed(0)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
losses = []
for number, (x, y) in enumerate(batches(5)):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(model(x).float(), y)
    if number == 1 and "fine" not in sys.argv:
        loss = loss * float("inf")
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    losses.append(loss.item())
finish(losses, model)
