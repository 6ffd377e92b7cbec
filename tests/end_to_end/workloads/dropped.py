"""A small network with dropout that is computed again in backward; with `forget`, an NPU draws other masks then."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Network(nn.Module):
    def __init__(self, forget):
        super().__init__()
        self.wide, self.drop, self.head = nn.Linear(16, 64), nn.Dropout(0.25), nn.Linear(64, 4)
        self.forget = forget

    def inner(self, features):
        return self.drop(torch.relu(self.wide(features)))

    def forward(self, features):
        forgets = self.forget and features.device.type != "cpu"
        return self.head(checkpoint(self.inner, features, use_reentrant=False, preserve_rng_state=not forgets))


def build(*, forget=False):
    return Network(forget)


def inputs():
    return {"features": torch.randn(32, 16), "labels": torch.randint(0, 4, (32,))}


def compare(output, labels):
    return functional.cross_entropy(output, labels)


def loss():
    return compare
