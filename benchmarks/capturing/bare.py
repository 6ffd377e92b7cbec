"""The least that any recorder does at module level: hooks, and of each tensor three reductions, or its bytes into one file.

It keeps no record and nothing of what it computes: what this costs, nobody saves. Prints one JSON object.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # this file is run by its path

import torch

from capturing import work
from precflow.agent.session import garbage

ROW = 512


class Bare:
    """Hooks on every module that hand each new tensor to a function: what goes in, what comes out, what arrives at it.

    Args:
        look: What is done with a tensor.

    Attributes:
        tensors: How many were looked at in the last step.
        bytes: How large they were together.
    """

    def __init__(self, look: Callable[[torch.Tensor], object]) -> None:
        self._look = look
        self._seen: dict[tuple[int, int], torch.Tensor] = {}
        self.tensors = 0
        self.bytes = 0

    def step(self, model: torch.nn.Module, step: Callable[[], None]) -> None:
        """Run a step with the hooks on."""
        self._seen.clear()
        self.tensors = self.bytes = 0
        handles = [each for module in model.modules() for each in self._hooks(module)]
        step()
        for handle in handles:
            handle.remove()

    def _hooks(self, module: torch.nn.Module) -> list[Any]:
        return [
            module.register_forward_pre_hook(self._entered, with_kwargs=True),
            module.register_forward_hook(self._left),
        ]

    def _entered(self, module: torch.nn.Module, positional: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        del module
        for each in (*positional, *keywords.values()):
            self._see(each)

    def _left(self, module: torch.nn.Module, positional: tuple[Any, ...], result: Any) -> None:
        del module, positional
        for each in result if isinstance(result, tuple) else (result,):
            if self._see(each) and each.requires_grad:
                each.register_hook(self._arrived)

    def _arrived(self, gradient: torch.Tensor) -> None:
        self._see(gradient)

    def _see(self, value: object) -> bool:
        """Look at a tensor, once as long as nobody writes to it; tell whether it was new."""
        if not isinstance(value, torch.Tensor) or (id(value), value._version) in self._seen:  # noqa: SLF001  documented by torch
            return False
        self._seen[id(value), value._version] = value  # noqa: SLF001  holds it: its id stays its own
        self.tensors += 1
        self.bytes += value.numel() * value.element_size()
        self._look(value.detach())
        return True


def reductions(tensor: torch.Tensor) -> object:
    """Return extremes, sums of rows and norms of rows of a floating point tensor; of others nothing."""
    if not tensor.is_floating_point() or not tensor.numel():
        return None
    rows = tensor.reshape(-1, ROW if tensor.numel() % ROW == 0 else tensor.shape[-1] if tensor.dim() else 1)
    return torch.aminmax(rows), rows.sum(1), torch.linalg.vector_norm(rows, dim=1)


def writing(file: int) -> Callable[[torch.Tensor], object]:
    """Return a function that writes the bytes of a tensor to an open file."""

    def write(tensor: torch.Tensor) -> object:
        """Write them in one call, from where they are."""
        packed = tensor.contiguous()
        size = packed.numel() * packed.element_size()
        return os.write(file, memoryview((ctypes.c_ubyte * size).from_address(packed.data_ptr())).cast("B")) if size else 0

    return write


def main(case: work.Case) -> dict[str, Any]:
    """Measure one case and return its times, and the tensors and bytes of the last step."""
    model, step = case.build()
    file = os.open(Path(case.folder) / "bytes", os.O_RDWR | os.O_CREAT)

    def clean() -> None:
        os.ftruncate(file, 0)
        os.lseek(file, 0, os.SEEK_SET)

    bare = Bare(writing(file) if case.detail == "tensors" else reductions)
    with garbage.collect_rarely():
        result = work.race(step, lambda: bare.step(model, step), case.rounds, clean=clean)
    os.close(file)
    return {**result, "tensors": bare.tensors, "bytes": bare.bytes}


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(main(work.Case.parse(sys.argv[1]))) + "\n")
