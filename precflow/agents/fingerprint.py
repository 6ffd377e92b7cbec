"""What a side's interpreter is, told in a tenth of a second and without torch: part of the key of what it computes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precflow.agent.contract import relevant_variables
from precflow.config.schema import Side
from precflow.errors import SideError

# Runs in the other interpreter, without its user's folder and without ours. Distributions are read from the names of their
# folders: opening each one's metadata takes ten times as long.
_PROBE = """
import json, os, platform, sys
found = {}
for folder in sys.path:
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        stem, kind = os.path.splitext(name)
        if kind in (".dist-info", ".egg-info") and "-" in stem:
            package, version = stem.split("-")[:2]
            found.setdefault(package.lower().replace("_", "-").replace(".", "-"), version)
print(json.dumps({"version": platform.python_version(), "packages": found}))
"""
_NODES = ("nvidia[0-9]*", "davinci[0-9]*", "davinci_manager", "dri/renderD*", "kfd")
_PATIENCE = 30.0  # seconds for the probe: a network file system may be slow


def fingerprint(side: Side) -> dict[str, Any]:
    """Return what a side's results may depend on besides its recipe.

    Returns:
        ``interpreter`` (path behind links, version), ``packages`` (distribution -> version), ``accelerators`` (device nodes),
        ``machine``, and ``variables`` that matter.

    Raises:
        SideError: The interpreter is missing, cannot be executed or does not answer.
    """
    executable = interpreter(side)
    probed = _probe(executable)
    return {
        "interpreter": {"path": str(Path(executable).resolve()), "version": probed["version"]},
        "packages": probed["packages"],
        "accelerators": sorted(node.name for pattern in _NODES for node in Path("/dev").glob(pattern)),
        "machine": os.uname().machine,
        "variables": relevant_variables({**os.environ, **{name: str(value) for name, value in side.variables.items()}}),
    }


def interpreter(side: Side) -> str:
    """Return the path of a side's interpreter; ``""`` in the recipe is the judge's own.

    Raises:
        SideError: There is no such file, or it may not be executed.
    """
    if not side.interpreter:
        return sys.executable
    wanted = str(Path(side.interpreter).expanduser())
    found = shutil.which(wanted)
    if found is not None:
        return found
    reason = "is not executable" if Path(wanted).is_file() else "does not exist"
    raise SideError(
        f"interpreter {side.interpreter} {reason}",
        next_step="name the Python of this side, such as interpreter=/usr/bin/python3",
    )


def _probe(executable: str) -> Mapping[str, Any]:
    try:
        done = subprocess.run([executable, "-I", "-c", _PROBE], capture_output=True, text=True, timeout=_PATIENCE, check=True)
        probed: Mapping[str, Any] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", "") or "").splitlines()
        raise SideError(
            f"{executable} does not answer like a Python interpreter: {error}",
            log=said[-5:],
            next_step="name the Python of this side, such as interpreter=/usr/bin/python3",
        ) from error
    return probed
