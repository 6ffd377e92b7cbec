"""Versions as torch, CANN and drivers write them, most of which packaging can compare."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from precflow.environment.differences import package_name

# The part that can be compared of what CANN and its driver write: 8.0.RC3.alpha003 and 24.1.rc3.7 are release candidates 3.
_BEGINNING = re.compile(r"\d+(\.\d+)*(\.?(rc|beta|alpha)\.?\d+)?", re.IGNORECASE)
UNKNOWN = ("", "unknown", "None")


def parse(text: str) -> Version | None:
    """Return a version, without what a build adds to it; ``None`` if there is none in the text.

    >>> str(parse("8.0.RC3.alpha003")), str(parse("2.6.0+cu124")), parse("unknown")
    ('8.0rc3', '2.6.0', None)
    """
    public = text.strip().partition("+")[0]
    try:
        return Version(public)
    except InvalidVersion:
        beginning = _BEGINNING.match(public)
        return Version(beginning[0]) if beginning else None


def lies_in(text: str, wanted: str) -> bool:
    """Tell whether a version lies in a range such as ``>=2.1,<2.6``; one that cannot be read lies in none but ``""``.

    Release candidates count as what they are, since CANN is released as such: ``<=8.0.RC3`` has 8.0.RC1, and ``<8.0.0`` has
    no 8.0.RC1, as packaging defines it.

    >>> lies_in("8.0.RC1", "<=8.0.RC3"), lies_in("2.1.0.post4", "==2.1.0.*"), lies_in("unknown", ">=1")
    (True, True, False)
    """
    version = parse(text)
    return not wanted or (version is not None and SpecifierSet(wanted).contains(version, prereleases=True))


def begins_with(text: str, beginning: str) -> bool:
    """Tell whether the numbers of a version begin with those of another.

    >>> begins_with("25.5.1", "25.5"), begins_with("25.50", "25.5"), begins_with("26.0.RC1", "26.0")
    (True, False, True)
    """
    version, wanted = parse(text), parse(beginning)
    return version is not None and wanted is not None and version.release[: len(wanted.release)] == wanted.release


def list_versions(facts: Mapping[str, Any], packages: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the version of everything that a side has, by name; what does not say its version is left out.

    Args:
        facts: Facts of the side, or ``{}`` if none of its devices answers.
        packages: Installed packages, where the facts have none.

    Returns:
        Packages by their names (``torch-npu``), and ``python``, ``cann``, ``cuda`` (that torch is built for), ``cudnn``,
        ``ascend-driver``, ``ascend-firmware`` and ``nvidia-driver``, and what a plugin is built with (``cmake``, ``gcc`` ...).
    """
    device, torch, machine, python = (read_section(facts, name) for name in ("device", "torch", "machine", "python"))
    found = {package_name(name): version for name, version in (read_section(facts, "packages") or packages or {}).items()}
    found |= {
        "torch": torch.get("version") or found.get("torch", ""),
        "torch-npu": device.get("torch_npu") or found.get("torch-npu", ""),
        "python": python.get("version", ""),
        "cuda": device.get("cuda") or torch.get("cuda_build", ""),
        "cudnn": _read_cudnn(str(device.get("cudnn", ""))),
        "cann": device.get("cann", ""),
    }
    found |= {name: machine.get(name.replace("-", "_"), "") for name in ("ascend-driver", "ascend-firmware", "nvidia-driver")}
    found |= {name: read_section(machine, "tools").get(name, "") for name in ("cmake", "gcc", "g++", "ninja")}
    found["cann"] = machine.get("cann", "") if found["cann"] in UNKNOWN else found["cann"]
    return {name: str(version) for name, version in found.items() if str(version) not in UNKNOWN}


def read_section(facts: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a section of facts; those of a dump come from anywhere, and one that is only a text is its version.

    >>> read_section({"torch": "2.6.0", "device": None}, "torch"), read_section({"device": None}, "device")
    ({'version': '2.6.0'}, {})
    """
    section = facts.get(name)
    if isinstance(section, Mapping):
        return section
    return {"version": section} if isinstance(section, str) else {}


def _read_cudnn(number: str) -> str:
    """Return the version that torch gives as one number.

    >>> _read_cudnn("91002"), _read_cudnn("8902"), _read_cudnn("")
    ('9.10.2', '8.9.2', '')
    """
    if not number.isdigit():
        return ""
    value = int(number)
    large = 10_000 if value >= 90_000 else 1_000
    return f"{value // large}.{value % large // 100}.{value % 100}"
