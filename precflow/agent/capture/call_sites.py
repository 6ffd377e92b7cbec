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


class Above:
    """The part of a site that all calls inside one module call have in common: it is looked at once.

    Whoever has it lets it go when the module is left, because a frame keeps everything that its function and its callers hold.

    Args:
        frame: Of torch's code that runs the module.

    Attributes:
        frame: The same.
        places: User code above it, once it was looked at: ids of code and places in it, frame by frame.
    """

    __slots__ = ("frame", "places")

    def __init__(self, frame: FrameType) -> None:
        self.frame = frame
        self.places: Optional[Tuple[int, ...]] = None


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

    def here(self, above: Optional[Above] = None) -> int:
        """Return the number of the site that is running: up to ``DEPTH`` frames of user code, the innermost first.

        Args:
            above: Of the module call that is running.
        """
        frame = sys._getframe(1)  # noqa: SLF001  inspect.stack reads source files and takes milliseconds
        places = self._user_code(frame, above)
        number = self._numbers.get(places)
        if number is None:
            number = self._numbers[places] = self._number(self._text(frame))
        return number

    def _user_code(self, start: Optional[FrameType], above: Optional[Above]) -> Tuple[int, ...]:
        """Return ids of user code and places in it; to find their lines would take longer."""
        places: List[int] = []
        kinds, boundary = self._kinds, None if above is None else above.frame
        frame = start
        while frame is not None and len(places) < 2 * DEPTH:
            code = frame.f_code
            known = kinds.get(id(code)) or self._learn(frame)
            if known[1] is _OF_USER:
                places += (id(code), frame.f_lasti)
            elif above is not None and frame is boundary:
                if above.places is None:
                    above.places = self._user_code(frame.f_back, None)
                places += above.places[: 2 * DEPTH - len(places)]
                break
            elif known[1] is _END:
                break
            frame = frame.f_back
        return tuple(places)

    def _text(self, start: Optional[FrameType]) -> str:
        """Return the text of the site that a frame is in."""
        texts: List[str] = []
        frame = start
        while frame is not None and len(texts) < DEPTH:
            _, kind = self._kinds.get(id(frame.f_code)) or self._learn(frame)
            if kind is _END:
                break
            if kind is _OF_USER:
                texts.append(self._frame_text(frame))
            frame = frame.f_back
        return " <- ".join(texts)

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
