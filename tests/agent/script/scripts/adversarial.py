"""Two models, each with its optimizer, a frozen teacher, and an average of the weights made by deepcopy."""

import copy

import torch
from helper import batches, finish
from torch.nn.functional import softplus

torch.manual_seed(0)
generator = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
critic = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
teacher = torch.nn.Sequential(torch.nn.Linear(8, 1)).eval().requires_grad_(False)
average = copy.deepcopy(generator)
of_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
of_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
losses = []
for x, _ in batches(2):
    fake = generator(torch.randn(len(x), 4))
    with torch.no_grad():
        hint = teacher(x)
    of_critic.zero_grad()
    loss = softplus(-critic(x) + 0.1 * hint).mean()
    loss.backward()
    softplus(critic(fake.detach())).mean().backward()
    of_critic.step()
    of_generator.zero_grad()
    other = softplus(-critic(fake)).mean()
    other.backward()
    of_generator.step()
    for slow, fast in zip(average.parameters(), generator.parameters()):
        slow.data.lerp_(fast.data, 0.01)
    losses += [loss.item(), other.item()]
finish(losses, generator, critic, average)
