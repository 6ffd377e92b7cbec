"""Facts about this side: system, interpreter, torch, device, switches, packages and environment variables that matter.

They name no person: no user, no host, no home folder; secrets are redacted.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from typing import Any, Dict, Optional

from precflow.agent import redaction
from precflow.agent.devices.protocol import Device
from precflow.agent.session import determinism
from precflow.agent.variables import select_recorded

_HOMES = re.compile(r"/(?:home|Users)/[^/:\s]+")
_NAME_OR_VERSION = re.compile(r"^(Name|Version):[ \t]*(.*?)[ \t]*$", re.MULTILINE)


def collect(device: Optional[Device]) -> Dict[str, Dict[str, Any]]:
    """Return the facts of this process and of a started device, as two-level JSON data; ``None``: of what needs no torch."""
    redaction.learn(os.environ)  # first: a secret of a variable may also stand in a path or in another variable below
    sections: Dict[str, Dict[str, Any]] = {
        "system": {
            "os": _read_distribution(),
            "kernel": platform.release(),
            "machine": platform.machine(),
            "libc": " ".join(platform.libc_ver()).strip(),
            "byteorder": sys.byteorder,
            "processors": str(os.cpu_count()),
        },
        "python": {
            "version": platform.python_version(),
            "implementation": platform.python_implementation(),
            "executable": hide_homes(sys.executable),
        },
        **({} if device is None else _describe_device(device)),
        "packages": list_packages(),
        "variables": {name: hide_homes(value) for name, value in select_recorded(os.environ).items()},
    }
    return {section: {name: redaction.redact(value) for name, value in facts.items()} for section, facts in sections.items()}


def _describe_device(device: Device) -> Dict[str, Dict[str, Any]]:
    device_facts = device.facts()
    return {
        "torch": _describe_torch(),
        "device": {
            "name": device.name,
            "kind": device.kind,
            "description": device_facts.description,
            "emulated": device.kind == "emulated",
            **device_facts.versions,
        },
        "switches": {**determinism.read_switches(), **device_facts.switches},
    }


def list_packages() -> Dict[str, str]:
    """Return the version of every installed distribution, by normalized name, sorted."""
    from importlib import metadata

    packages: Dict[str, str] = {}
    for distribution in metadata.distributions():
        # Not `distribution.metadata`: it parses the description behind the first empty line too, which took each agent 0.3 s.
        text = next(filter(None, map(distribution.read_text, ("METADATA", "PKG-INFO", ""))), "")
        header = dict(_NAME_OR_VERSION.findall(text.partition("\n\n")[0]))
        if header.get("Name"):  # a broken installation has none
            # The first one counts, as in an import; "Foo_Bar" and "foo.bar" are one package.
            packages.setdefault(re.sub(r"[-_.]+", "-", header["Name"]).lower(), header.get("Version", "unknown"))
    return dict(sorted(packages.items()))


def hide_homes(text: str) -> str:
    """Return the text with home folders written as ``~``.

    >>> hide_homes("/home/ann/models:/opt/models")
    '~/models:/opt/models'
    """
    home = os.path.expanduser("~")  # may lie elsewhere than below /home
    if home not in ("/", "~"):
        text = re.sub(re.escape(home) + r"(?=/|:|$)", "~", text)
    return _HOMES.sub("~", text)


def _read_distribution() -> str:
    try:
        with open("/etc/os-release", encoding="utf-8", errors="replace") as stream:
            fields = dict(line.rstrip("\n").split("=", 1) for line in stream if "=" in line)
    except OSError:
        return platform.system()
    return fields.get("PRETTY_NAME", platform.system()).strip('"')


def _describe_torch() -> Dict[str, str]:
    import torch

    return {
        "version": str(torch.__version__),
        "git": str(getattr(torch.version, "git_version", "unknown")),
        "cuda_build": str(torch.version.cuda),
        "cxx11_abi": str(torch.compiled_with_cxx11_abi()),
        "parallel": torch.__config__.parallel_info().partition("ATen parallel backend: ")[2].split("\n")[0],
    }
