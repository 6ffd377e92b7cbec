"""What `npu-smi` and `nvidia-smi` print, as devices: which there are, whether they are healthy, and the memory in use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_HEALTH = re.compile(r"[A-Za-z]+")
_ADDRESS = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d")
_USAGE = re.compile(r"(\d+)\s*/\s*(\d+)")
_MEGABYTE = 1024 * 1024  # both tools count in these
_FIELDS = 6  # that nvidia-smi is asked for


@dataclass(frozen=True)
class Chip:
    """One device as its tool shows it.

    Attributes:
        number: Its number there.
        name: Its model.
        healthy: Whether the tool calls it healthy.
        health: What the tool says of it: ``OK``, ``Alarm``; of a GPU its uncorrected memory errors, if there are any.
        used: Bytes of its memory that are in use.
        total: Bytes of its memory.
    """

    number: int
    name: str
    healthy: bool
    health: str
    used: int
    total: int


def read_npu_smi(text: str) -> list[Chip]:
    """Return the chips in what ``npu-smi info`` prints; none if it is not that table.

    Each chip has two lines: one with its name and health, and one with its address and memory. Columns between them differ
    from version to version; the last usage of a line that is not ``0 / 0`` is that of the chip's own memory.
    """
    return list(_read_chips(text))


def _read_chips(text: str) -> Iterator[Chip]:
    name, health, number = "", "", 0
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.strip().startswith("|") or len(cells) < 3:
            continue
        words = cells[0].split()
        if _ADDRESS.fullmatch(cells[1]) and name:
            usages = [(int(used), int(total)) for used, total in _USAGE.findall(cells[2]) if int(total)]
            used, total = usages[-1] if usages else (0, 0)
            yield Chip(number, name, health.upper() == "OK", health, used * _MEGABYTE, total * _MEGABYTE)
            number += 1
        elif len(words) >= 2 and words[0].isdigit() and _HEALTH.fullmatch(cells[1]):
            name, health = words[1], cells[1]


def read_npu_smi_version(text: str) -> str:
    """Return the version in the head of ``npu-smi info``, which is that of the driver.

    >>> read_npu_smi_version("| npu-smi 24.1.rc3                 Version: 24.1.rc3       |")
    '24.1.rc3'
    """
    found = re.search(r"Version:\s*(\S+)", text)
    return found[1] if found else ""


def read_nvidia_smi(text: str) -> list[Chip]:
    """Return the GPUs in what ``nvidia-smi --query-gpu=...`` prints.

    >>> read_nvidia_smi("0, NVIDIA H100 80GB HBM3, 570.133.20, 81559, 4, 0")[0].name
    'NVIDIA H100 80GB HBM3'
    """
    chips = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == _FIELDS and fields[0].isdigit():
            number, name, _, total, used, errors = fields
            broken = errors.isdigit() and int(errors) > 0
            sizes = [int(size) * _MEGABYTE if size.isdigit() else 0 for size in (used, total)]
            health = f"{errors} uncorrected memory errors" if broken else "OK"
            chips.append(Chip(int(number), name, not broken, health, *sizes))
    return chips


def read_nvidia_driver(text: str) -> str:
    """Return the driver's version in the same text.

    >>> read_nvidia_driver("0, NVIDIA H100 80GB HBM3, 570.133.20, 81559, 4, 0")
    '570.133.20'
    """
    fields = [field.strip() for field in text.partition("\n")[0].split(",")]
    return fields[2] if len(fields) == _FIELDS else ""
