"""Two layers, small enough that this example takes seconds."""

from torch import Tensor, nn, randn


def build() -> nn.Module:
    """Return the model."""
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))


def inputs() -> tuple[Tensor]:
    """Return its arguments."""
    return (randn(32, 64),)
