"""Does watching change what a script computes? Action ``plain`` runs it without our hooks, to be compared with the watched run.

What is compared is what the optimizers of one step leave behind, bit for bit: the losses, the weights, and the states of the
generators. A plain run has no hook at any module and no mode, see :mod:`precflow.agent.script.follower`. Dropout is
removed and draws are moved as in the watched run, because the recipe says so.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Sequence, Set

import torch
from torch.nn.modules import module as modules

from precflow.agent.contract import PLAIN_FILE
from precflow.agent.dump.step_files import write_json
from precflow.agent.dump.write_errors import write_error
from precflow.agent.measure.content_id import content_id
from precflow.agent.ranks import rank_of
from precflow.agent.script.follower import Follower
from precflow.agent.script.launch import moves_draws, run_to_end, surroundings
from precflow.agent.script.models import describe_parameter
from precflow.agent.session import determinism
from precflow.agent.session.dump import make_random_numbers

if TYPE_CHECKING:
    from precflow.agent.devices.protocol import Device
    from precflow.agent.events import Events
    from precflow.agent.request import Request

_SHOWN = 4  # weights that are named


def run_plain(request: Request, device: Device, where: torch.device, events: Events) -> None:
    """Run a script plainly to the end of its first recorded step, and write what it left into ``request.output``.

    Raises:
        AgentError: The script raised an exception, or the file cannot be written.
    """
    del where  # the script chooses its device itself
    numbers = make_random_numbers(request)
    run = PlainRun(request, device)
    with events.time_part("script", "running it without hooks"), surroundings(request, device, numbers):
        if moves_draws(request, device):
            numbers.start()
        run.trace.begin()
        with run.without_dropout(), run.follower:
            run_to_end(request, lambda: run.follower.made)
    run.finish()


class Trace:
    """What steps of optimizers leave behind, in bits.

    Args:
        device: Its generator is looked at, beside those of Python, NumPy and torch.

    Attributes:
        calls: Number of the call of an optimizer -> ``losses`` (before it, in full precision), ``weights`` and ``generators``
            (contents after it).
        parameters: The weights of the optimizers, by the same names; to describe those that differ.
        start: States of the generators before the script. Python and NumPy seed theirs from the clock if nobody else does, and
            then they prove nothing.
    """

    def __init__(self, device: Device) -> None:
        self.calls: Dict[int, Dict[str, Any]] = {}
        self.parameters: Dict[str, torch.Tensor] = {}
        self.start: Dict[str, str] = {}
        self._device = device

    def begin(self) -> None:
        """Note the generators: the script is about to run."""
        self.start = determinism.read_generators(self._device)

    def note(self, number: int, optimizer: torch.optim.Optimizer, losses: Sequence[float] = ()) -> None:
        """Note what an optimizer has left.

        Args:
            number: Of the calls of all optimizers, from 0.
            optimizer: The optimizer.
            losses: What backward was called on since the call before.
        """
        weights = {
            "%d.%d.%d" % (number, place, index): weight
            for place, group in enumerate(optimizer.param_groups)
            for index, weight in enumerate(group["params"])
        }
        self.parameters.update(weights)
        self.calls[number] = {
            "losses": [each.hex() for each in losses],
            "weights": {name: content_id(weight) for name, weight in weights.items()},
            "generators": determinism.read_generators(self._device),
        }


def compare_with_plain(plain: Mapping[str, Any], watched: Trace, losses: Sequence[float]) -> List[str]:
    """Return what differs between a plain run and the watched one, in words; empty if all bits are the same.

    Args:
        plain: What the plain run has written.
        watched: The calls of one step of the watched run.
        losses: Of this step in the watched run. Those after the first optimizer of a step are not seen there.
    """
    if any(str(number) not in plain["calls"] for number in watched.calls):
        return ["number of the optimizers' steps"]
    pairs = [(plain["calls"][str(number)], call) for number, call in sorted(watched.calls.items())]
    of_plain = [text for theirs, _ in pairs for text in theirs["losses"]]
    seen = [each.hex() for each in losses]
    found = []
    if seen != of_plain[: len(seen)] or (of_plain and not seen):
        shown = [", ".join("%.9g" % float.fromhex(text) for text in texts) or "none" for texts in (seen, of_plain)]
        found.append("loss (%s, and %s without hooks)" % tuple(shown))
    weights = [
        name for theirs, ours in pairs for name, content in ours["weights"].items() if theirs["weights"].get(name) != content
    ]
    found += ["weight " + describe_parameter(watched.parameters[name]) for name in weights[:_SHOWN]]
    found += ["%d more weights" % (len(weights) - _SHOWN)] if len(weights) > _SHOWN else []
    generators = {
        name
        for theirs, ours in pairs
        for name, state in ours["generators"].items()
        if theirs["generators"].get(name) != state and plain["start"].get(name) == watched.start.get(name)
    }
    return found + ["generator of %s" % name for name in sorted(generators)]


class PlainRun:
    """Listens to a script that is followed to the end of its first recorded step, and notes what its optimizers leave.

    Args:
        request: Says which step that is.
        device: The started device.

    Attributes:
        follower: Follows the script.
        trace: What the optimizers left.
    """

    def __init__(self, request: Request, device: Device) -> None:
        self.trace = Trace(device)
        self._request = request
        last = min(request.capture.step)
        self.follower = Follower(last, self)
        # Every step has a call of an optimizer, so this many calls were before it. Dump evaluations are steps without one.
        self._first = 0 if request.workload.get("evaluation") else last
        self._taken: Set[int] = set()  # ids of modules whose dropout was removed

    @contextmanager
    def without_dropout(self) -> Iterator[None]:
        """Remove dropout from each module that is about to run, if the recipe does."""
        if self._request.determinism.dropout != "removed":
            yield
            return
        hook = modules.register_module_forward_pre_hook(self._remove_dropout)
        try:
            yield
        finally:
            hook.remove()

    def _remove_dropout(self, module: torch.nn.Module, positional: Any) -> None:
        del positional
        if id(module) not in self._taken:
            self._taken.update(id(each) for each in module.modules())
            determinism.remove_dropout(module)

    def before_optimizer(self, step: int, optimizer: torch.optim.Optimizer) -> None:
        """Look at nothing: only what a step leaves behind is compared."""

    def after_optimizer(self, step: int, optimizer: torch.optim.Optimizer, losses: Sequence[float]) -> None:
        """Note what an optimizer has left."""
        del step
        if self.follower.made >= self._first:
            self.trace.note(self.follower.made, optimizer, losses)

    def finish(self) -> None:
        """Write what the optimizers have left into the folder of the request.

        Raises:
            WriteError: It cannot be written.
        """
        path = os.path.join(self._request.output, PLAIN_FILE % rank_of(self._request))
        try:
            calls = {str(number): call for number, call in self.trace.calls.items()}
            write_json(path, {"calls": calls, "start": self.trace.start})
        except OSError as error:
            raise write_error(error, path, 0) from error
