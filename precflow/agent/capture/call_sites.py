"""Call sites: the lines of user code that a call came from, such as ``model.py:12 in forward <- train.py:40 in main``."""

from __future__ import annotations

import os
import sys
from types import CodeType, FrameType
from typing import Dict, List, Optional, Sequence, Tuple

DEPTH = 6  # frames of one call site

# Workloads are part of the agent, but stand in for a user's script: their lines are shown.
_SKIPPED_PACKAGES = ("torch", "torch_npu", "runpy")
_CAPTURE = "precflow.agent.capture"
_AGENT = "precflow.agent"
_WORKLOADS = "precflow.agent.workloads"
# Modes that see a function before capture does: their frames lie between it and the user's line, and the worker's above both.
_MODES = tuple(
    "%s.%s" % (_AGENT, name)
    for name in (
        "script.loss_data",
        "script.losses",
        "session.choices",
        "session.interventions",
        "session.precision",
        "session.random_numbers",
    )
)
_USER, _SKIP, _END = "user", "skip", "end"


class ModuleCaller:
    """Where a module call came from: all operators inside it share these frames, so they are walked only once.

    Drop it when the module is left: a frame keeps alive all variables of its function and of the callers.

    Args:
        frame: Frame of torch's code that runs the module.

    Attributes:
        frame: The same.
        places: The user code from there on outwards, once it was walked: id of the code and place in it, frame by frame.
    """

    __slots__ = ("frame", "places")

    def __init__(self, frame: FrameType) -> None:
        self.frame = frame
        self.places: Optional[Tuple[int, ...]] = None


class CallSites:
    """The call sites of a run: each text is stored once, and records refer to it by number.

    File names are relative to the deepest folder of ``sys.path``, or the working directory, that holds the file: no absolute
    path leaves this machine.

    Args:
        texts: List that new sites are appended to; those that are in it already keep their numbers.
    """

    def __init__(self, texts: Optional[List[str]] = None) -> None:
        self.texts: List[str] = [] if texts is None else texts
        self._kinds: Dict[int, Tuple[CodeType, str]] = {}  # holds the code object, so that its id stays valid
        self._paths: Dict[int, Tuple[CodeType, str]] = {}  # the same
        self._numbers: Dict[Tuple[int, ...], int] = {}  # id of the code and place in it, frame by frame -> number
        self._known: Dict[str, int] = {text: number for number, text in enumerate(self.texts)}

    def find_number(self, caller: Optional[ModuleCaller] = None) -> int:
        """Return the number of the site that runs now: up to ``DEPTH`` frames of user code, the innermost first.

        Args:
            caller: Caller of the module that is running.
        """
        frame = sys._getframe(1)  # noqa: SLF001  inspect.stack reads source files and takes milliseconds
        places = self._walk(frame, caller)
        number = self._numbers.get(places)
        if number is None:
            # Frames at other places of the same lines, such as two calls in one line, have the same text and share its number.
            text = self._format_site(frame)
            number = self._numbers[places] = self._known.setdefault(text, len(self.texts))
            if number == len(self.texts):
                self.texts.append(text)
        return number

    def _walk(self, start: Optional[FrameType], caller: Optional[ModuleCaller]) -> Tuple[int, ...]:
        """Return id of the code and place in it for each frame of user code.

        This runs for every record. The text is made only for sites that are new, since finding line numbers takes longer.
        """
        places: List[int] = []
        kinds, boundary = self._kinds, None if caller is None else caller.frame
        frame = start
        while frame is not None and len(places) < 2 * DEPTH:  # each frame adds two numbers
            # f_lasti, the instruction, is at hand; f_lineno is computed from a table each time.
            code = frame.f_code
            known = kinds.get(id(code)) or self._classify(frame)
            if known[1] is _USER:
                places += (id(code), frame.f_lasti)
            elif caller is not None and frame is boundary:
                if caller.places is None:
                    caller.places = self._walk(frame.f_back, None)
                places += caller.places[: 2 * DEPTH - len(places)]
                break
            elif known[1] is _END:
                break
            frame = frame.f_back
        return tuple(places)

    def _format_site(self, start: Optional[FrameType]) -> str:
        """Return the text of the site that a frame belongs to."""
        texts: List[str] = []
        frame = start
        while frame is not None and len(texts) < DEPTH:
            code = frame.f_code
            _, kind = self._kinds.get(id(code)) or self._classify(frame)
            if kind is _END:
                break
            if kind is _USER:
                if id(code) not in self._paths:
                    self._paths[id(code)] = (code, relative_path(code.co_filename, [*sys.path, os.getcwd()]))
                texts.append("%s:%d in %s" % (self._paths[id(code)][1], frame.f_lineno, code.co_name))
            frame = frame.f_back
        return " <- ".join(texts)

    def _classify(self, frame: FrameType) -> Tuple[CodeType, str]:
        """Note if the code of a frame is the user's, is skipped (torch, capture), or ends the walk (the agent's worker)."""
        name, kind = frame.f_globals.get("__name__", ""), _USER
        has_no_file = frame.f_code.co_filename.startswith("<")  # such as <string> and <frozen importlib._bootstrap>
        if name in _MODES:
            kind = _SKIP
        elif _is_within(name, _AGENT) and not _is_within(name, _CAPTURE) and not _is_within(name, _WORKLOADS):
            kind = _END
        elif has_no_file or name.partition(".")[0] in _SKIPPED_PACKAGES or _is_within(name, _CAPTURE):
            kind = _SKIP
        known = self._kinds[id(frame.f_code)] = (frame.f_code, kind)
        return known


def _is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def relative_path(path: str, roots: Sequence[str]) -> str:
    """Return a path relative to the deepest root that holds it, with ``/``; just the file name if none does.

    >>> relative_path("/opt/site/package/model.py", ["/opt", "/opt/site"])
    'package/model.py'
    """
    # The deepest, because sys.path holds both /opt/project and /opt/project/lib/python3.11/site-packages.
    full = os.path.abspath(path)
    folders = [os.path.abspath(root) for root in roots if root]
    holding = [folder for folder in folders if folder != os.sep and full.startswith(folder + os.sep)]
    if not holding:
        return os.path.basename(full)
    return full[len(max(holding, key=len)) + 1 :].replace(os.sep, "/")
