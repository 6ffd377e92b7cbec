"""Memory that a thread computes in, kept from one tensor to the next: fresh pages take longer than the sums themselves.

Each use has its own, because several are needed at a time. Whoever hands it on says so: the next call overwrites it.
"""

from __future__ import annotations

import math
import threading
from typing import Dict, Tuple

import torch

_MOST_VIEWS = 64  # that a thread keeps; making one takes as long as the sums of a small tensor


class _Thread(threading.local):
    """What one thread has: memory by use, and views of it by use and shape."""

    def __init__(self) -> None:
        self.memory: Dict[str, torch.Tensor] = {}
        self.views: Dict[Tuple[str, Tuple[int, ...]], torch.Tensor] = {}


_thread = _Thread()


def host_memory(use: str, shape: Tuple[int, ...], dtype: torch.dtype, room: int = 0) -> torch.Tensor:
    """Return memory of a shape on the host: for one use and thread the same each time, or more of it.

    Args:
        use: What it is for; two uses never share memory.
        shape: Sizes.
        dtype: Element type, always the same for one use.
        room: Elements that are made at the first call, where later ones may need more than this one.
    """
    view = _thread.views.get((use, shape))
    if view is not None:
        return view
    count = math.prod(shape)
    memory = _thread.memory.get(use)
    with torch.inference_mode(mode=False):  # what is made in that mode cannot be written to outside of it
        if memory is None or memory.numel() < count:
            memory = _thread.memory[use] = torch.empty(max(count, room), dtype=dtype)
            _thread.views.clear()  # they would keep the smaller memory
        if len(_thread.views) >= _MOST_VIEWS:
            _thread.views.clear()
        view = _thread.views[use, shape] = memory[:count].view(shape)
    return view
