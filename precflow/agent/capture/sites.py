"""Call sites: which lines of the user's code a call came from."""

from __future__ import annotations

import os
import sys
from types import CodeType, FrameType
from typing import Dict, List, Optional, Sequence, Tuple

DEPTH = 6  # frames of one site

_SKIPPED = ("torch", "torch_npu")
_CAPTURE = "precflow.agent.capture"
_AGENT = "precflow.agent"
_WORKLOADS = "precflow.agent.workloads"
_OF_USER, _PASSED_OVER, _END = "user", "passed over", "end"


class Sites:
    """Call sites of a run, each text once.

    Args:
        roots: Folders that packages are imported from; file names are given relative to the deepest one that holds them,
            or to an entry of ``sys.path`` or the working directory. No absolute path leaves this machine.
        texts: List that the sites are added to, with those that have numbers already.
    """

    def __init__(self, roots: Sequence[str] = (), texts: Optional[List[str]] = None) -> None:
        self.texts: List[str] = [] if texts is None else texts
        self._roots = [str(root) for root in roots]
        self._kinds: Dict[int, Tuple[CodeType, str]] = {}  # holds the code, so that its id stays its own
        self._places: Dict[int, Tuple[CodeType, str]] = {}  # holds the code, so that its id stays its own
        self._numbers: Dict[Tuple[int, ...], int] = {}  # ids of code and places in it, frame by frame
        self._known: Dict[str, int] = {text: number for number, text in enumerate(self.texts)}

    def here(self) -> int:
        """Return the number of the site that is running: up to ``DEPTH`` frames of user code, the innermost first."""
        frames: List[FrameType] = []
        places: List[int] = []  # finding the lines would take longer
        kinds = self._kinds
        frame: Optional[FrameType] = sys._getframe(1)  # noqa: SLF001  inspect.stack reads source files and takes milliseconds
        while frame is not None:
            code = frame.f_code
            known = kinds.get(id(code)) or self._learn(frame)
            if known[1] is _OF_USER:
                frames.append(frame)
                places += (id(code), frame.f_lasti)
                if len(frames) == DEPTH:
                    break
            elif known[1] is _END:
                break
            frame = frame.f_back
        number = self._numbers.get(tuple(places))
        if number is None:
            number = self._numbers[tuple(places)] = self._number(" <- ".join([self._frame_text(each) for each in frames]))
        return number

    def _learn(self, frame: FrameType) -> Tuple[CodeType, str]:
        """Find out what kind of code a frame runs; the worker that called the model ends the search for user code."""
        found = self._kinds[id(frame.f_code)] = (frame.f_code, _kind(frame))
        return found

    def _number(self, text: str) -> int:
        if text not in self._known:
            self._known[text] = len(self.texts)
            self.texts.append(text)
        return self._known[text]

    def _frame_text(self, frame: FrameType) -> str:
        code = frame.f_code
        if id(code) not in self._places:
            self._places[id(code)] = (code, relative_path(code.co_filename, self._all_roots()))
        return "%s:%d in %s" % (self._places[id(code)][1], frame.f_lineno, code.co_name)

    def _all_roots(self) -> List[str]:
        return [*self._roots, *sys.path, os.getcwd()]


def _kind(frame: FrameType) -> str:
    """Tell whether a frame runs code of the user, of what is passed over, or of the worker that called the model."""
    name = frame.f_globals.get("__name__", "")
    if _within(name, _AGENT) and not _within(name, _CAPTURE) and not _within(name, _WORKLOADS):
        return _END
    skipped = name.partition(".")[0] in _SKIPPED or _within(name, _CAPTURE) or frame.f_code.co_filename.startswith("<")
    return _PASSED_OVER if skipped else _OF_USER


def _within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def relative_path(path: str, roots: Sequence[str]) -> str:
    """Return a path relative to the deepest of the roots that holds it, with ``/``; the bare name where none does.

    >>> relative_path("/opt/site/package/model.py", ["/opt", "/opt/site"])
    'package/model.py'
    """
    full = os.path.abspath(path)
    folders = [os.path.abspath(root) for root in roots if root]
    holding = [folder for folder in folders if folder != os.sep and full.startswith(folder + os.sep)]
    if not holding:
        return os.path.basename(full)
    return full[len(max(holding, key=len)) + 1 :].replace(os.sep, "/")
