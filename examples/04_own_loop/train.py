"""A training loop of one's own, recorded: python train.py FOLDER [eps]."""

import sys

import torch

import precflow

folder, eps = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 1e-5
torch.manual_seed(7)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.LayerNorm(32, eps=eps), torch.nn.GELU(), torch.nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

with precflow.capture(model, folder, optimizer=optimizer, step=[0, 1]) as recorder:
    while not recorder.done:
        batch = torch.randn(8, 16)
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step()
