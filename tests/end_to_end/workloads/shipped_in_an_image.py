"""A model that another version of its software computes otherwise: ``FAKE_IMAGE`` says which version runs."""

import os

import torch
from torch import nn

BROKEN_FROM = 2


class Scaled(nn.Module):
    def forward(self, values):
        return values * (1.01 if int(os.environ.get("FAKE_IMAGE", "app:0").rpartition(":")[2]) >= BROKEN_FROM else 1.0)


def build():
    return nn.Sequential(nn.Linear(8, 8), Scaled())


def inputs():
    return (torch.randn(2, 8),)
