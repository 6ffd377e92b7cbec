"""Choosing the device of a side: the first one of its list that is available."""

from __future__ import annotations

import difflib
import importlib
from typing import Dict, Iterable, List, Sequence

from precflow.agent.contract import DEVICE_KINDS
from precflow.agent.devices.protocol import Device
from precflow.agent.failures import AgentError


def find_devices(kinds: Iterable[str]) -> Dict[str, Device]:
    """Return kind -> the ``DEVICE`` of its module in this folder."""
    return {kind: importlib.import_module("precflow.agent.devices." + kind).DEVICE for kind in kinds}


DEVICES = find_devices(DEVICE_KINDS)


def choose(preferences: Sequence[str], *, ci: bool, side: str = "target") -> Device:
    """Return the first device of the list that can be used on this machine.

    Args:
        preferences: Kinds of devices, the most wanted first.
        ci: Running in CI: ``emulated`` is then accepted only as the single name. Otherwise a build machine with a broken
            driver would fall back to the emulation and report success.
        side: Name of the side, for the error message.

    Raises:
        AgentError: ``bad_request``: a name is unknown. ``device_missing``: none is available; the message says why for each.
    """
    _require_known(preferences)
    reasons: List[str] = []
    for kind in preferences:
        refused = ci and kind == "emulated" and len(preferences) > 1
        reason = "not taken in CI unless it is named alone" if refused else DEVICES[kind].missing()
        if not reason:
            return DEVICES[kind]
        reasons.append("%s: %s" % (kind, reason))
    asked = preferences[0] if len(preferences) == 1 else "[%s]" % ",".join(preferences)
    alternatives = ("emulated", "cpu") if "npu" in preferences or "emulated" in preferences else ("cpu",)
    working = ["%s.device=%s" % (side, kind) for kind in alternatives if not DEVICES[kind].missing()]
    message = "no device for %s.device=%s here. %s" % (side, asked, "; ".join(reasons))
    raise AgentError("device_missing", message, "this would work here: " + " or ".join(working))


def _require_known(preferences: Sequence[str]) -> None:
    if not preferences:
        raise AgentError("bad_request", "device is an empty list; expected some of %s" % ", ".join(DEVICES))
    for kind in preferences:
        if kind not in DEVICES:
            near = difflib.get_close_matches(kind, DEVICES, n=1)
            hint = " Did you mean %s?" % near[0] if near else ""
            raise AgentError("bad_request", "unknown device %r; known are %s.%s" % (kind, ", ".join(DEVICES), hint))
