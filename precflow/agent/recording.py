"""A dump that is being recorded: its writer, its recorder and its header, put together in one place.

A workload (``session/dump.py``), a script (``script/dump.py``) or a loop of the user's own (``own_loop.py``) drives the model.
What is recorded of it, and what the header says of that, does not depend on who does.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence

import torch

from precflow.agent import redaction
from precflow.agent.capture import autograd
from precflow.agent.capture.recorder import Recorder
from precflow.agent.contract import DUMP_FORMAT, DUMP_SCHEMA, EMPTY_HEADER, FILLS_VERSION, MODULES
from precflow.agent.dump.background import QUEUE_BYTES
from precflow.agent.dump.writer import Writer
from precflow.agent.failures import AgentError
from precflow.agent.measure import value_classes
from precflow.agent.ranks import rank_of
from precflow.agent.request import runs_eagerly
from precflow.agent.session import environment
from precflow.agent.session.changes import Changed, list_changes
from precflow.version import __version__

if TYPE_CHECKING:
    from precflow.agent.capture.record_lines import Substitute
    from precflow.agent.devices.protocol import Device
    from precflow.agent.events import Events
    from precflow.agent.request import Request
    from precflow.agent.session.random_numbers import Draw


def make_writer(request: Request, folder: str, *, on_cpu: bool, rank: int) -> Writer:
    """Return the writer of a dump in an existing folder.

    Args:
        request: What is recorded.
        folder: The folder.
        on_cpu: The model runs on the CPU. A writing thread would take cores from it then, and every tensor would have to be
            copied for it.
        rank: Number of this process.

    Raises:
        WriteError: Another process writes this dump, or the folder cannot be written to.
    """
    return Writer(
        folder,
        budget_bytes=request.capture.budget // request.ranks,
        rank=rank,
        resume=request.resume,
        declared=request.declared,
        queue_bytes=0 if on_cpu else QUEUE_BYTES,
        keep_last=request.capture.keep_last,
    )


class OpenDump:
    """A dump that is being recorded.

    Args:
        request: What is recorded.
        device: The device that the model runs on.
        writer: Where records and tensors go.
        rank: Number of this process; by default that of the request.
        events: Told of collectives if several ranks run.
        substitute: See :class:`Recorder`.

    Attributes:
        recorder: Records the calls.
        selection: What is recorded in which detail.
    """

    def __init__(  # noqa: PLR0913  what goes in, and what is only there for some drivers
        self,
        request: Request,
        device: Device,
        writer: Writer,
        *,
        rank: Optional[int] = None,
        events: Optional[Events] = None,
        substitute: Optional[Substitute] = None,
    ) -> None:
        capture = request.capture
        self._request, self._device = request, device
        self.selection = capture.selection()
        self.recorder = Recorder(
            writer,
            capture._replace(detail="tensors"),
            selection=self.selection,
            rank=rank_of(request) if rank is None else rank,
            report=events.report_collective if events is not None and request.ranks > 1 else None,
            substitute=substitute,
            compiles=not runs_eagerly(request),
        )

    def describe(
        self, *, weights: Mapping[str, Any], inputs: Mapping[str, Any], changed: Changed, draws: Sequence[Draw] = ()
    ) -> Dict[str, Any]:
        """Return the header, but for what only the driver knows: losses, what ran in all, and whether it repeats itself.

        Args:
            weights: ``digest`` and ``entries`` of the weights.
            inputs: The same of the inputs.
            changed: What capture has changed in what ran; its draws are those of ``draws``.
            draws: Draws of random numbers.
        """
        request, sites = self._request, list(self.recorder.sites)
        changed = changed._replace(draws=_describe_draws(draws, sites))
        header = build_header(request, self._device, weights=weights, inputs=inputs, changed=changed)
        settings = self.recorder.describe_settings()
        return {
            **header,
            "facts": {**header["facts"], **({MODULES: settings} if settings else {})},
            # In a resumed dump a rule may have matched only in steps that were recorded before, so none is called unmatched.
            "capture": {**request.capture.to_plain(), "unmatched": [] if request.resume else self.selection.unmatched},
            "updates": self.recorder.updates.describe(),
            "compiled": self.recorder.describe_compiled(),
            "sites": [redaction.redact_text(site) for site in sites],
        }


def check_capture(request: Request) -> None:
    """Make sure that this torch can record what the request asks for.

    Raises:
        AgentError: ``unsupported``: this torch does not show its graph. ``bad_request``: no step, or a negative one.
    """
    if "backward" in request.capture.phase and not autograd.shows_graph():
        message = "torch %s does not show its autograd graph: phase backward cannot be recorded" % torch.__version__
        raise AgentError("unsupported", message, "capture.phase=[forward,gradient,optimizer]")
    if not request.capture.step or min(request.capture.step) < 0:
        raise AgentError("bad_request", "capture.step is %s; expected numbers from 0" % list(request.capture.step))


def build_header(
    request: Request, device: Device, *, weights: Mapping[str, Any], inputs: Mapping[str, Any], changed: Changed
) -> Dict[str, Any]:
    """Return the header of a dump in which nothing was recorded yet: the side, its environment, and what it started from.

    Args:
        request: The request.
        device: The device that it ran on.
        weights: ``digest`` and ``entries`` of the weights.
        inputs: The same of the inputs.
        changed: What capture has changed in what ran.
    """
    facts = environment.collect(device)
    nothing_seen: Dict[str, Any] = {
        "capture": {**request.capture.to_plain(), "unmatched": []},
        "losses": [],
        "updates": {},
        "repeat": {"checked": False, "records": 0, "by": [], "different": []},
        "observer": dict(EMPTY_HEADER["observer"]),
        "ran": [],
        "draws": list(changed.draws),
        "compiled": {"unseen": {}, "eager": []},
        "sites": [],
        "seconds": {},
    }
    return {
        "schema": DUMP_SCHEMA,
        "format": DUMP_FORMAT,
        "id": os.urandom(8).hex(),
        "agent": __version__,
        "side": request.side,
        "recipe": request.recipe,
        "declared": request.declared,
        "device": {name: facts["device"][name] for name in ("name", "kind", "description", "emulated")},
        "dtype": request.dtype,
        "fills": {"version": FILLS_VERSION, "constants": list(value_classes.constants())},
        "emulate": {"name": "", "rules": [], **request.emulate, "redrawn": list(changed.redrawn)},
        "facts": facts,
        "determinism": {
            **request.determinism._asdict(),
            "dropouts_removed": list(changed.dropouts),
            "functional_dropouts_removed": list(changed.functional_dropouts),
            "changes": list_changes(request, changed, facts),
        },
        "weights": weights,
        "inputs": inputs,
        **nothing_seen,
    }


def describe_run(
    *, steps: int, micro_batches: Optional[int] = None, calls: Optional[Mapping[str, int]] = None, whole: bool = True
) -> Dict[str, Any]:
    """Return what a rank ran in all, recorded or not: two sides that ran another number of calls did not run the same.

    Args:
        steps: Steps that it made.
        micro_batches: Those of all its steps; one a step if not given.
        calls: Name of a model -> calls of it; one a step of the model without a name if not given.
        whole: It ran to its own end, and was not ended after its last recorded step.
    """
    return {
        "whole": whole,
        "steps": steps,
        "micro_batches": steps if micro_batches is None else micro_batches,
        "calls": {"": steps} if calls is None else dict(calls),
    }


def _describe_draws(draws: Sequence[Draw], sites: List[str]) -> List[Dict[str, Any]]:
    """Return draws as the header has them: with the number of their call site, as record lines have it.

    Args:
        draws: The draws.
        sites: Call sites so far; those of the draws are appended.
    """
    described: List[Dict[str, Any]] = []
    for draw in draws:
        if draw.site not in sites:
            sites.append(draw.site)
        described.append({**draw._asdict(), "site": sites.index(draw.site)})
    return described
