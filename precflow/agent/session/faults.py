"""Faults that a request adds to the emulated device on purpose; real devices have none.

Only this module and the emulated device import the emulation, and only if the request asks for it.
"""

from __future__ import annotations

import difflib
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Iterator, List, Sequence

from precflow.agent.contract import REDRAW
from precflow.agent.failures import AgentError

_SHOWN = 6  # places that a message names

if TYPE_CHECKING:
    import torch

    from precflow.agent.devices.protocol import Device
    from precflow.agent.request import Request


def configure(request: Request, device: Device) -> None:
    """Hand the request's rules to the emulated device.

    Raises:
        AgentError: ``bad_request``: the rules are wrong, or the device is not the emulated one.
    """
    asked = request.emulate.get("rules")
    if not asked:
        return
    name = request.emulate.get("name", "")
    if device.kind != "emulated":
        message = "emulate rules (%s) need the emulated device; device of %s is %s" % (name, request.side, device.kind)
        raise AgentError("bad_request", message, "%s.device=emulated" % request.side)
    from precflow.agent.emulated import rules

    try:
        rules.configure(asked)
    except ValueError as error:
        raise AgentError("bad_request", "emulate rules (%s): %s" % (name, error)) from error


def refuse_misplaced(request: Request, models: Sequence[torch.nn.Module]) -> None:
    """Refuse a fault that is tied to a module or a parameter that none of these models has.

    Raises:
        AgentError: ``bad_request``; the message names places of the models that would do.
    """
    modules = [name for model in models for name, _ in model.named_modules() if name]
    parameters = [name for model in models for name, _ in model.named_parameters()]
    for number, rule in enumerate(request.emulate.get("rules") or ()):
        for key, places in (("module", modules), ("parameter", parameters)):
            _refuse_elsewhere(request, number, key, rule.get(key, ""), places)


def _refuse_elsewhere(request: Request, number: int, key: str, pattern: str, places: Sequence[str]) -> None:
    if not pattern or any(fnmatchcase(place, pattern) for place in places):
        return
    near = difflib.get_close_matches(pattern, places, _SHOWN, 0.0) or list(places[:_SHOWN])
    more = "" if len(places) <= len(near) else ", and %d more" % (len(places) - len(near))
    message = "the emulated fault %s acts in %s %s, and this model has none of that name; it has %s%s"
    raise AgentError(
        "bad_request",
        message % (request.emulate.get("name", ""), key, pattern, ", ".join(near) or "none at all", more),
        "choose one:  emulate.rules.%d.%s=%s" % (number, key, near[0]) if near else "leave the fault out",
    )


def refuse_redraws(request: Request) -> None:
    """Refuse a fault that draws weights anew, where the model is the script's own and its weights are not precflow's to draw.

    Raises:
        AgentError: ``bad_request``; the next step names a fault that changes a script's numbers.
    """
    drawn = [rule["parameter"] for rule in request.emulate.get("rules") or () if rule.get("rule") == REDRAW]
    if drawn:
        name = request.emulate.get("name", "")
        message = "the emulated fault %s draws %s anew, and a script makes its own weights" % (name, drawn[0])
        raise AgentError("bad_request", message, "choose a fault of an operator:  +emulate=layernorm_eps")


def redraw(request: Request, model: torch.nn.Module) -> List[str]:
    """Draw the weights that rules name again, with the device's own generator; return their names."""
    if not request.emulate.get("rules"):
        return []
    from precflow.agent.emulated import rules

    return list(rules.redraw(model))


def check_acted(request: Request) -> None:
    """Refuse a fault that has changed nothing: the run would look clean although the fault never happened.

    Raises:
        AgentError: ``bad_request``: no rule matched any operator or parameter.
    """
    if not request.emulate.get("rules"):
        return
    from precflow.agent.emulated import rules

    if rules.are_idle():
        message = "emulate rules (%s) matched nothing that ran: no such operator or module in this model"
        raise AgentError(
            "bad_request",
            message % request.emulate.get("name", ""),
            "compare the names in conf/emulate with those of the model",
        )


@contextmanager
def follow_modules(request: Request, model: torch.nn.Module) -> Iterator[None]:
    """Tell the rules which module is running, until the block ends."""
    if not request.emulate.get("rules"):
        yield
        return
    from precflow.agent.emulated import rules

    watch = rules.Watch(model)
    try:
        yield
    finally:
        watch.remove()
