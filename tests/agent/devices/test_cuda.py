import pytest
import torch

from precflow.agent.devices.cuda import Cuda


def test_a_build_without_cuda_says_so(monkeypatch):
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    assert "is built without CUDA" in Cuda().missing()


def test_a_build_with_cuda_and_no_device_says_so(monkeypatch):
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "CUDA_VISIBLE_DEVICES" in Cuda().missing()


@pytest.mark.parametrize(
    ("algorithms", "expected"), [("native", (False, True)), ("warn", (True, False)), ("strict", (True, False))]
)
def test_cudnn_follows_the_algorithms(monkeypatch, algorithms, expected):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    Cuda().deterministic(algorithms)
    assert (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark) == expected
