"""The fingerprint of a side's interpreter: versions, packages and drivers, found in 0.1 s without importing torch.

It is part of the cache key of everything that the side computes, so it is taken before every run.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from precflow import keys
from precflow.agent import redaction
from precflow.agent.variables import select_recorded
from precflow.config.schema import Side
from precflow.errors import SideError

# Runs in the side's interpreter with -I, so that a json.py in the working directory cannot replace the real one. That option
# also hides folders that the agent will see (user site-packages, PYTHONPATH), so those are added to the search by name.
# Distributions are read from the names of their folders ("torch-2.4.0.dist-info"): opening their metadata is ten times slower.
_PROBE = """
import importlib.util, json, os, platform, site, sys
found, origins = {}, {}
own = [] if sys.prefix != sys.base_prefix else [site.getusersitepackages()]
for folder in sys.path + own + json.loads(sys.argv[1]):
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        stem, kind = os.path.splitext(name)
        if kind in (".dist-info", ".egg-info") and "-" in stem:
            package, version = stem.split("-")[:2]
            found.setdefault(package.lower().replace("_", "-").replace(".", "-"), version)
for name in json.loads(sys.argv[2]):
    spec = importlib.util.find_spec(name)
    if spec is not None:
        origins[name] = list(spec.submodule_search_locations or [spec.origin])
print(json.dumps({"version": platform.python_version(), "packages": found, "origins": origins}))
"""
_DRIVERS = (  # files that an update of the driver changes, even if the path to its folder stays the same
    "/proc/driver/nvidia/version",
    "/usr/local/Ascend/driver/version.info",
    "/usr/local/Ascend/firmware/version.info",
)
_TOOLKITS = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "CUDA_HOME")
_OF_TOOLKIT = ("version.cfg", "compiler/version.info", "runtime/version.info", "version.json")
_USUAL_TOOLKIT = "/usr/local/Ascend/ascend-toolkit/latest"
_NODES = ("nvidia[0-9]*", "davinci[0-9]*", "davinci_manager", "dri/renderD*", "kfd")
_LONGEST = 1 << 20  # most bytes read from a version file
_UNKNOWN: Mapping[str, Any] = {"version": "", "packages": {}, "origins": {}}  # of an interpreter that is not here
_PROBE_TIMEOUT = 30.0  # seconds until the probe is given up: a network file system may be slow


def take_fingerprint(side: Side) -> dict[str, Any]:
    """Return everything outside the recipe that a side's results may depend on.

    Returns:
        ``interpreter`` (path with links resolved, version), ``packages`` (distribution -> version), ``accelerators`` (device
        nodes), ``drivers`` (version file of a driver or toolkit -> checksum), ``machine``, and ``variables`` that matter.
        Behind a launcher the side may be in a container or on another machine, of which none of this says anything:
        ``launcher`` has its words, so that another image is another side.

    Raises:
        SideError: The interpreter is missing, cannot be executed or does not answer.
    """
    elsewhere = _is_elsewhere(side)
    executable = side.interpreter if elsewhere else find_interpreter(side)
    everything = {**os.environ, **{name: str(value) for name, value in side.variables.items()}}
    setup = [Path(file).expanduser() for file in side.setup]
    probed = _UNKNOWN if elsewhere else _probe(executable, everything.get("PYTHONPATH", ""))
    return {
        **({"launcher": [redaction.redact_word(word) for word in side.launcher]} if side.launcher else {}),
        # By name and content: what it sets may be nothing that is recorded, and still another toolkit.
        **({"setup": [[file.name, keys.file_digest(file) if file.is_file() else "absent"] for file in setup]} if setup else {}),
        "interpreter": {"path": executable if elsewhere else str(Path(executable).resolve()), "version": probed["version"]},
        "packages": probed["packages"],
        "accelerators": sorted(node.name for pattern in _NODES for node in Path("/dev").glob(pattern)),
        "drivers": find_drivers(everything),
        "machine": os.uname().machine,
        "variables": select_recorded(everything),
    }


def find_origins(side: Side, packages: Sequence[str]) -> dict[str, list[str]]:
    """Return the file or folders from which a side's interpreter imports each package, ignoring PYTHONPATH and user folder.

    Raises:
        SideError: The interpreter is missing, cannot be executed or does not answer.
    """
    origins: dict[str, list[str]] = {} if _is_elsewhere(side) else _probe(find_interpreter(side), "", packages)["origins"]
    return origins


def _is_elsewhere(side: Side) -> bool:
    """Tell whether a side's interpreter is where its launcher leads, such as in a container, and not here."""
    return bool(side.launcher and side.interpreter) and shutil.which(str(Path(side.interpreter).expanduser())) is None


def find_drivers(variables: Mapping[str, str]) -> dict[str, str]:
    """Return ``path -> checksum`` of the files in which drivers and toolkits write their version."""
    homes = [*dict.fromkeys(variables[name] for name in _TOOLKITS if variables.get(name)), _USUAL_TOOLKIT]
    files = [*map(Path, _DRIVERS), *(Path(home) / name for home in homes for name in _OF_TOOLKIT)]
    checksums: dict[str, str] = {}
    for file in files:
        if file.is_file() and os.access(file, os.R_OK):
            with file.open("rb") as stream:  # size and time would be less work, but files below /proc report a size of 0
                checksums[str(file)] = hashlib.blake2b(stream.read(_LONGEST), digest_size=16).hexdigest()
    return checksums


def find_interpreter(side: Side) -> str:
    """Return the path of a side's interpreter; ``""`` in the recipe means the judge's own.

    Raises:
        SideError: There is no such file, or it may not be executed.
    """
    if not side.interpreter:
        return sys.executable
    wanted = str(Path(side.interpreter).expanduser())
    executable = shutil.which(wanted)
    if executable is not None:
        return executable
    reason = "is not executable" if Path(wanted).is_file() else "does not exist"
    raise SideError(
        f"interpreter {side.interpreter} {reason}",
        next_step="name the Python of this side, such as interpreter=/usr/bin/python3",
    )


def _probe(executable: str, python_path: str, packages: Sequence[str] = ()) -> Mapping[str, Any]:
    folders = [folder for folder in python_path.split(os.pathsep) if folder]
    command = [executable, "-I", "-c", _PROBE, json.dumps(folders), json.dumps(list(packages))]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT, check=True)
        probed: Mapping[str, Any] = json.loads(answer.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        printed = (getattr(error, "stderr", "") or "").splitlines()
        raise SideError(
            f"{executable} does not answer like a Python interpreter: {error}",
            log=printed[-5:],
            next_step="name the Python of this side, such as interpreter=/usr/bin/python3",
        ) from error
    return probed
