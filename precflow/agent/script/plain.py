"""Does watching change what a script computes? Action ``plain`` runs it without our hooks, to be compared with the watched run.

What is compared is what the optimizers of one step leave behind, bit for bit: the losses, the weights, and the states of the
generators. A plain run has no hook at any module and no mode. What it needs is a hook before and after an optimizer's step, and
a stand-in for ``Tensor.backward`` that reads the loss, the only name of torch that is ever replaced; it stays in this process.
Dropout is removed and draws are moved as in the watched run, because the recipe says so.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Sequence, Set

import torch
from torch._C import DisableTorchFunction
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

from precflow.agent.contract import PLAIN_FILE
from precflow.agent.dump.step_files import write_json
from precflow.agent.dump.write_errors import write_error
from precflow.agent.measure.content_id import content_id
from precflow.agent.ranks import rank_of
from precflow.agent.script.launch import Stopper, moves_draws, run_to_end, surroundings
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
        with run:
            run_to_end(request, lambda: run.made)
    run.write()


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
    """Follows a script by nothing but the steps of its optimizers, and ends it when the first recorded step is over.

    Args:
        request: Says which step that is.
        device: The started device.

    Attributes:
        made: Number of steps that optimizers have made.
        trace: What they left.
    """

    def __init__(self, request: Request, device: Device) -> None:
        self.made = 0
        self.trace = Trace(device)
        self._request = request
        self._last = min(request.capture.step)
        # Every step has a call of an optimizer, so this many calls were before it. Recorded evaluations are steps without one.
        self._first = 0 if request.workload.get("evaluation") else self._last
        self._removes_dropout = request.determinism.dropout == "removed"
        self._taken: Set[int] = set()  # ids of modules whose dropout was removed
        self._losses: List[float] = []
        self._calls: Dict[int, int] = {}  # id of an optimizer -> how often it has stepped
        self._optimizers: List[torch.optim.Optimizer] = []  # keeps the ids valid
        self._depth = 0  # optimizers that call other optimizers
        self._stopper = Stopper()
        self._process = os.getpid()
        self._hooks = ExitStack()

    def __enter__(self) -> PlainRun:  # noqa: PYI034  Self came with Python 3.11
        """Set the hooks at optimizers, and the stand-in for ``Tensor.backward``."""
        self._hooks.callback(optimizers.register_optimizer_step_pre_hook(self._before_step).remove)
        self._hooks.callback(optimizers.register_optimizer_step_post_hook(self._after_step).remove)
        if self._removes_dropout:
            self._hooks.callback(modules.register_module_forward_pre_hook(self._remove_dropout).remove)
        backward: Callable[..., None] = torch.Tensor.backward

        def read_loss(tensor: torch.Tensor, *positional: Any, **keywords: Any) -> None:
            """Read a loss and go backward from it."""
            with DisableTorchFunction():
                if tensor.numel() == 1 and not tensor.is_meta and os.getpid() == self._process:
                    self._losses.append(float(tensor.detach()))
            backward(tensor, *positional, **keywords)

        torch.Tensor.backward = read_loss  # type: ignore[method-assign,assignment]
        self._hooks.callback(setattr, torch.Tensor, "backward", backward)
        return self

    def __exit__(self, *error: object) -> None:
        """Take everything off."""
        self._hooks.close()

    def _remove_dropout(self, module: torch.nn.Module, positional: Any) -> None:
        del positional
        if id(module) not in self._taken:
            self._taken.update(id(each) for each in module.modules())
            determinism.remove_dropout(module)

    def _before_step(self, optimizer: torch.optim.Optimizer, positional: Any, keywords: Any) -> None:
        del positional, keywords
        if os.getpid() != self._process:
            return
        # No optimizer steps twice in one step: the recorded one is over when one has stepped more often than there were steps.
        if not self._depth and self._calls.get(id(optimizer), 0) > self._last:
            self._stop()
        self._depth += 1

    def _stop(self) -> None:
        self.write()  # what the script does when it is stopped cannot be known
        self._stopper.stop()

    def write(self) -> None:
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

    def _after_step(self, optimizer: torch.optim.Optimizer, positional: Any, keywords: Any) -> None:
        del positional, keywords
        if os.getpid() != self._process:
            return
        self._depth -= 1
        if self._depth:
            return
        if self.made >= self._first:
            self.trace.note(self.made, optimizer, self._losses)
        self._losses = []
        if id(optimizer) not in self._calls:
            self._optimizers.append(optimizer)
        self._calls[id(optimizer)] = self._calls.get(id(optimizer), 0) + 1
        self.made += 1
