"""Files that a script writes and that its dump keeps, in the folder ``files``."""

from __future__ import annotations

import glob
import os
import shutil
from typing import Dict, List, NamedTuple, Sequence, Tuple

from precflow.agent.failures import AgentError

_State = Tuple[int, int]  # size and time of the last change


class KeptFiles(NamedTuple):
    """What was kept: names of the files, and patterns that no file matched that the script had written."""

    kept: List[str]
    missing: List[str]


class FileKeeper:
    """Keeps the files of a script that match one of some patterns; those that were there before it ran are not its own.

    Args:
        patterns: Relative to the folder that the script starts in; ``**`` is any folders.

    Raises:
        AgentError: ``bad_request``: a pattern leaves that folder.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        for pattern in patterns:
            if os.path.isabs(pattern) or ".." in pattern.replace("\\", "/").split("/"):
                message = "workload.files has %r, which leaves the folder that the script runs in" % pattern
                raise AgentError("bad_request", message, "name files below that folder")
        self._patterns = patterns
        self._folder = os.getcwd()  # the script may change it
        self._before = {name: state for pattern in patterns for name, state in self._list(pattern).items()}

    def keep(self, to: str) -> KeptFiles:
        """Copy the files into a folder, under their names relative to the folder that the script started in."""
        kept: List[str] = []
        missing: List[str] = []
        for pattern in self._patterns:
            written = [name for name, state in self._list(pattern).items() if self._before.get(name) != state]
            missing += [] if written else [pattern]
            for name in written:
                target = os.path.join(to, name)
                os.makedirs(os.path.dirname(target), exist_ok=True)
                shutil.copyfile(os.path.join(self._folder, name), target)
                kept.append(name)
        return KeptFiles(sorted(set(kept)), missing)

    def _list(self, pattern: str) -> Dict[str, _State]:
        found: Dict[str, _State] = {}
        root = os.path.realpath(self._folder) + os.sep
        for path in glob.glob(os.path.join(glob.escape(self._folder), pattern), recursive=True):
            if os.path.isfile(path) and os.path.realpath(path).startswith(root):  # a link may lead elsewhere
                status = os.stat(path)
                found[os.path.relpath(path, self._folder)] = (status.st_size, status.st_mtime_ns)
        return found
