"""Models that tests of capture are made of."""

from torch import nn


class Calls(nn.Module):
    """A model whose forward is the given function; parts become submodules."""

    def __init__(self, forward, **parts):
        super().__init__()
        self._function = forward
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, *positional, **keywords):
        return self._function(self, *positional, **keywords)
