"""A model that is given secrets, and hands them to everything that precflow might write down."""

import hashlib
import os
import sys

import torch


class Inner(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x, note):
        return self.linear(x) + len(note)


class Model(torch.nn.Module):
    def __init__(self, note):
        super().__init__()
        self.inner, self.note = Inner(), note

    def forward(self, x):
        return self.inner(x, note=self.note)


def build(checksum, api_key="", address="", how="run"):
    """Return a model, if the secrets are the real ones; they are printed as careless code does."""
    found = hashlib.sha256((api_key + address).encode()).hexdigest()
    if found != checksum:
        raise ValueError("these are not the secrets that were given")
    assert "PRECFLOW_SECRETS" not in os.environ
    sys.stdout.write(f"logged in with {api_key} at {address}\n")
    sys.stderr.write(f"the password is {os.environ['API_PASSWORD']}\n")
    if how == "raise":
        raise ValueError(f"no access to {address} with {api_key} and {os.environ['API_PASSWORD']}")
    torch.manual_seed(0)
    return Model(api_key)


def inputs():
    """Return one input."""
    return {"x": torch.ones(2, 8)}
