"""Settings of modules: what decides their numbers and no tensor shows."""

import pytest
import torch
from torch import nn

from precflow.agent.capture.module_settings import read_settings


class OfAnotherLibrary(nn.Module):
    """A norm as libraries of models write it."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.variance_epsilon = 1e-6


class Adapter(nn.Module):
    """A module of the user's own, whose numbers no class declares."""

    def __init__(self):
        super().__init__()
        self.scale, self.scaling = 4.0, {"default": 2.0, "names": "x"}
        self.calls, self.kind, self._seconds = 3, "cuda", 0.25


class Failing(nn.Module):
    """A property of it fails."""

    @property
    def eps(self):
        raise RuntimeError("not yet")


@pytest.mark.parametrize(
    ("module", "settings"),
    [
        (nn.LayerNorm(4, eps=1e-3), {"eps": "0.001", "elementwise_affine": "True"}),
        (nn.GELU("tanh"), {"approximate": "'tanh'"}),
        (nn.LeakyReLU(0.2, inplace=True), {"negative_slope": "0.2"}),
        (nn.Dropout(0.3), {"p": "0.3"}),
        (nn.Linear(3, 4), {}),
        (nn.Sequential(nn.Linear(3, 4)), {}),
        (OfAnotherLibrary(), {"variance_epsilon": "1e-06"}),
        (Failing(), {}),
        (Adapter(), {"self.scale": "4.0", "self.scaling.default": "2.0"}),
    ],
)
def test_what_decides_the_numbers_is_read(module, settings):
    assert read_settings(module) == settings


def test_a_batch_norm_says_whether_it_averages():
    norm = nn.BatchNorm2d(4, momentum=0.3)
    assert read_settings(norm).items() >= {"momentum": "0.3", "track_running_stats": "True", "training": "True"}.items()
    assert read_settings(norm.eval())["training"] == "False"


def test_a_loss_and_a_convolution():
    assert read_settings(nn.CrossEntropyLoss(label_smoothing=0.1))["label_smoothing"] == "0.1"
    assert read_settings(nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect")).items() >= {
        ("padding", "(1, 1)"),
        ("padding_mode", "'reflect'"),
    }
