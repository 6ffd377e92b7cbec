"""Gradients of embeddings with ``sparse=True``: compared as the dense tensors that they stand for."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import precflow

LENGTHS = torch.tensor([0, 3, 4, 9])


@pytest.fixture
def train(tmp_path):
    """Return a function that trains tags in bags for three steps, and records two."""

    def run(name, *, cleared=True):
        torch.manual_seed(0)
        tags = nn.EmbeddingBag(12, 6, mode="mean", sparse=True)
        model = nn.Sequential(tags, nn.Linear(6, 3))
        model[1].requires_grad_(requires_grad=False)
        optimizer = torch.optim.SparseAdam(tags.parameters(), lr=0.01)
        draws = torch.Generator().manual_seed(5)
        with precflow.capture(model, tmp_path / name, optimizer=optimizer, step=[0, 1]) as recording:
            for _ in range(3):
                words, labels = torch.randint(0, 12, (13,), generator=draws), torch.randint(0, 3, (4,), generator=draws)
                if cleared:
                    optimizer.zero_grad()
                loss = functional.cross_entropy(model[1](tags(words, LENGTHS)), labels)
                loss.backward()
                optimizer.step()
                recording.step()
        return tmp_path / name

    return run


def test_sparse_gradients_are_compared(train):
    result = precflow.compare(train("a"), train("b"), evaluate=False)
    assert (result.verdict, result.reasons) == ("aligned", ())
    assert [row.status for row in result.records if row.name.startswith("0/gradient")] == ["pass", "pass"]


def test_sparse_gradients_that_are_never_cleared_are_named(train):
    result = precflow.compare(train("a"), train("b", cleared=False))
    assert result.verdict == "misaligned"
    assert "PF813" in [finding.rule for finding in result.findings]
