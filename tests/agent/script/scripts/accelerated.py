"""accelerate: prepared model, optimizer and loader, bfloat16 by autocast, accumulation by its context."""

import torch
from accelerate import Accelerator
from helper import Net, batches, finish

torch.manual_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, mixed_precision="bf16")
net = Net()
model, optimizer, loader = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=1e-3), batches())
losses = []
for x, y in loader:
    with accelerator.accumulate(model):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
finish(losses, net)
