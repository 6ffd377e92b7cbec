"""Action ``as_is``: run a workload as it is, and note the losses and gradients of some of its steps.

What a recipe changes in what runs (dropout taken out, draws moved, an algorithm chosen) may be where the fault sits. In this
run nothing is changed, unless the request says so, and nothing is recorded: an optimizer's step is all that is looked at. The
seed of the recipe is set before a script, as ever, whose own come later and win: runs from other seeds cannot be compared.
"""

from __future__ import annotations

import math
import os
import zlib
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

import torch

from precflow.agent.contract import AS_IS_FILE
from precflow.agent.dump.step_files import write_json
from precflow.agent.dump.write_errors import write_error
from precflow.agent.failures import AgentError
from precflow.agent.measure.checksums import mix32_of
from precflow.agent.measure.sketch import BUCKETS, add_pieces, sketch
from precflow.agent.measure.transfer import to_hosts
from precflow.agent.ranks import rank_of
from precflow.agent.script.follower import Follower
from precflow.agent.script.launch import moves_draws, name_script, run_to_end, surroundings
from precflow.agent.session.dump import explain_user_errors, make_random_numbers, run_unrecorded
from precflow.agent.session.noise import OF_WORKLOAD
from precflow.agent.session.workload_model import RunContext, prepare
from precflow.agent.workloads.resolve import extend_path

if TYPE_CHECKING:
    from precflow.agent.devices.protocol import Device
    from precflow.agent.events import Events
    from precflow.agent.request import Request

_PIECE = 1 << 20  # values whose norm is taken in float32 at once
_BEGIN = 256  # values of a weight that it is told by


def run_as_is(request: Request, device: Device, where: torch.device, events: Events) -> None:
    """Run the workload to the end of the last step that the request names, and write what was seen into ``request.output``.

    If the workload does not run in this way, ``problem`` in the file says why.

    Raises:
        AgentError: Of every kind but ``workload`` and ``unsupported``.
    """
    seen = AsIsRun(request, device, where)
    try:
        with events.time_part("as_is", "running it as it is"):
            if request.workload.get("script"):
                _run_script(request, device, seen)
            else:
                _run_model(RunContext(request, device, where, events, make_random_numbers(request)), seen)
    except AgentError as error:
        if error.kind not in OF_WORKLOAD:
            raise
        seen.problem = "" if seen.is_over else error.message
    if not seen.steps and not seen.problem:
        what = name_script(str(request.workload["script"])) if request.workload.get("script") else "the workload"
        seen.problem = "no optimizer of torch stepped in %s" % what
    seen.finish()


def _run_script(request: Request, device: Device, seen: AsIsRun) -> None:
    numbers = make_random_numbers(request)
    with surroundings(request, device, numbers):
        if moves_draws(request, device):
            numbers.start()
        with seen.follower:
            run_to_end(request, lambda: seen.follower.made)


def _run_model(run: RunContext, seen: AsIsRun) -> None:
    extend_path(run.request.import_paths, run.request.workload)
    with explain_user_errors():
        workload = prepare(run, hashed=False)
        with seen.follower:
            run_unrecorded(run, workload, nullcontext())


class AsIsRun:
    """Listens to a run that is followed to the end of its last step.

    Args:
        request: Says which steps are noted.
        device: The started device.
        where: The same for torch.

    Attributes:
        follower: Follows the run.
        steps: What was noted, in order: ``step``, ``optimizer`` (its place among them), ``losses``, and of the gradients that
            it was given ``norm`` and ``sketch``; these are ``None`` without gradients, or if one is not finite.
        has_drawn: Numbers were drawn on the device, and not on the CPU.
        is_over: All steps were seen.
        problem: Why they were not, or ``""``.
    """

    def __init__(self, request: Request, device: Device, where: torch.device) -> None:
        self.follower = Follower(max(request.capture.step), self)
        self.steps: List[Dict[str, Any]] = []
        self.has_drawn = self.is_over = False
        self.problem = ""
        self._request, self._device, self._where = request, device, where
        self._places: Dict[int, int] = {}  # id of an optimizer -> its place
        self._numbers: Dict[int, int] = {}  # id of a weight -> what it is told by
        self._gradients: Tuple[Optional[float], Optional[List[float]]] = (None, None)

    def before_optimizer(self, step: int, optimizer: torch.optim.Optimizer) -> None:
        """Note the gradients that an optimizer is given."""
        self.has_drawn = self.has_drawn or has_drawn(self._device, self._where)
        weights = _list_weights(optimizer)
        self._numbers.update(number_weights(weight for weight in weights if id(weight) not in self._numbers))
        if step in self._request.capture.step:
            self._gradients = summarize_gradients(weights, self._numbers)

    def after_optimizer(self, step: int, optimizer: torch.optim.Optimizer, losses: Sequence[float]) -> None:
        """Note the step; an optimizer that computes gradients itself (a closure) has left those of its last call."""
        place = self._places.setdefault(id(optimizer), len(self._places))
        if step not in self._request.capture.step:
            return
        if self._gradients[0] is None:
            self._gradients = summarize_gradients(_list_weights(optimizer), self._numbers)
        norm, numbers = self._gradients
        self._gradients = (None, None)
        self.steps.append(
            {
                "step": step,
                "optimizer": place,
                "losses": [loss if math.isfinite(loss) else None for loss in losses],
                "norm": norm,
                "sketch": numbers,
            }
        )

    def finish(self) -> None:
        """Write what was seen.

        Raises:
            WriteError: It cannot be written.
        """
        self.is_over = True
        path = os.path.join(self._request.output, AS_IS_FILE % rank_of(self._request))
        facts = {
            "device": self._device.name,
            "problem": self.problem,
            "has_drawn": self.has_drawn,
            "steps": self.steps,
        }
        try:
            write_json(path, facts)
        except OSError as error:
            raise write_error(error, path, 0) from error


def _list_weights(optimizer: torch.optim.Optimizer) -> List[torch.Tensor]:
    return [weight for group in optimizer.param_groups for weight in group["params"]]


def number_weights(weights: Iterable[torch.Tensor]) -> Dict[int, int]:
    """Return ``id`` of a weight -> a number that tells it from others, of what it is when training begins.

    The two sides begin with the same weights, and may give them to their optimizers in another order, or in other groups. In
    bfloat16, so that a side that holds them in 16 bits has the same numbers.
    """
    numbers: Dict[int, int] = {}
    with torch.no_grad():
        for weight in weights:
            if not weight.is_meta:
                begin = _as_plain(weight).detach().reshape(-1)[:_BEGIN].to(torch.bfloat16).float()
                numbers[id(weight)] = zlib.crc32(repr((tuple(weight.shape), begin.tolist())).encode())
    return numbers


def summarize_gradients(
    weights: Iterable[torch.Tensor], known: Mapping[int, int]
) -> Tuple[Optional[float], Optional[List[float]]]:
    """Return the norm of all gradients together and one sketch of them; ``None`` each if there is none, or not a finite one.

    The sketches of the single gradients are added up, each turned by another number of buckets and with another sign, so that
    the same difference in several of them does not add up in one bucket. The order of the weights does not matter.

    Args:
        weights: Those of an optimizer.
        known: Their numbers, by ``id``.
    """
    numbers: List[int] = []
    measured: List[torch.Tensor] = []
    with torch.no_grad():
        for weight in weights:
            gradient = weight.grad
            if gradient is not None and gradient.is_floating_point() and not gradient.is_meta:
                flat = _as_plain(gradient).detach().reshape(-1).float()
                numbers.append(known.get(id(weight), 0))
                measured += [sketch(flat), torch.stack([piece.norm() for piece in flat.split(_PIECE)])]
    if not numbers:
        return None, None
    hosts = to_hosts(measured)
    total = torch.zeros(BUCKETS, dtype=torch.float64)
    for number, pieces in zip(numbers, hosts[::2]):
        turned = mix32_of(number) % (2 * BUCKETS)
        total += (-1) ** turned * torch.roll(add_pieces(pieces)[0].double(), turned // 2)
    square = math.fsum(float(norms.double().square().sum()) for norms in hosts[1::2])
    if not math.isfinite(square) or not bool(torch.isfinite(total).all()):
        return None, None
    return math.sqrt(square), [float("%.9g" % value) for value in total.tolist()]


def _as_plain(gradient: torch.Tensor) -> torch.Tensor:
    """Return the part of a gradient that this rank holds, as a dense tensor."""
    local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    return local.to_dense() if local.is_sparse else local


def has_drawn(device: Device, where: torch.device) -> bool:
    """Tell whether numbers were drawn on a device since its generator was seeded last; those of the CPU do not count.

    The generator is compared with a new one of the same seed: a script that only seeds every device has drawn nothing.
    """
    module: Any = getattr(torch, device.name, None) if device.name != "cpu" else None
    if module is None:
        return False
    fresh = torch.Generator(device=where).manual_seed(module.initial_seed())
    return not torch.equal(module.get_rng_state(), fresh.get_state())
