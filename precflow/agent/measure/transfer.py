"""Results on their way from devices to the host: many with one copy a device."""

from __future__ import annotations

from typing import List, Sequence

import torch


def to_hosts(tensors: Sequence[torch.Tensor]) -> List[torch.Tensor]:
    """Return tensors on the CPU; all that lie on one device come in one copy."""
    found: List[torch.Tensor] = list(tensors)
    devices = {each.device for each in tensors if each.device.type != "cpu"}
    for device in devices:
        places = [place for place, each in enumerate(tensors) if each.device == device]
        words = torch.cat([tensors[place].contiguous().view(-1).view(torch.int32) for place in places]).cpu()
        start = 0
        for place in places:
            one = tensors[place]
            size = one.numel() * one.element_size() // 4
            found[place] = words[start : start + size].clone().view(one.dtype).view(one.shape)
            start += size
    return found
