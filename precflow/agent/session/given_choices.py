"""The reference's choices, given to a run in place of its own: what-if ``reference_choice``.

Two correct devices choose differently where two values are as near as rounding, and everything behind is then computed from
other numbers. So each call that chooses runs as it is and is recorded with its *own* choice, by which the judge tells a near
tie from a fault. Then the reference's choice is written over it, and the model goes on with the same one on both sides::

    gate / topk     returns, and is recorded with     experts [0, 1]     of scores 0.3101, 0.2474
                    the model goes on with            experts [0, 3]     of scores 0.3101, 0.2473, its own for these experts

The file ``choices.json`` says where the reference's choices lie::

    {"choices": [{"record": "gate/topk.0/forward.output.1@0.0", "dimension": -1, "tensor": T}, ...]}

T is a tensor as in :mod:`precflow.agent.replay.calls`. ``dimension`` is that along which indices count, null for no indices.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence

import torch

from precflow.agent import intake
from precflow.agent.failures import AgentError
from precflow.agent.replay.calls import CannotCompute, StoredTensor, TensorFiles, parse_tensors


class _Choice(NamedTuple):
    stored: StoredTensor
    dimension: Optional[int]


class GivenChoices:
    """Writes the reference's choices over those of a run.

    Args:
        choices: Identity text of an output -> what the reference chose there.

    Attributes:
        replaced: Identity texts of the choices that differed and were replaced so far, in order.
    """

    def __init__(self, choices: Mapping[str, _Choice]) -> None:
        self.replaced: List[str] = []
        self._choices = choices
        self._files = TensorFiles()

    @classmethod
    def read(cls, path: str) -> GivenChoices:
        """Read the file that the judge has written.

        Raises:
            AgentError: ``bad_request``: it cannot be read, or holds something else.
        """
        again = "the judge writes this file: run its stage again"
        try:
            plain = intake.read_json(path)
            choices: Dict[str, _Choice] = {}
            for each in plain["choices"]:
                dimension = None if each["dimension"] is None else int(each["dimension"])
                choices[str(each["record"])] = _Choice(parse_tensors([each["tensor"]])[0], dimension)
        except OSError as error:
            raise AgentError("bad_request", "cannot read %s: %s" % (path, error.strerror), again) from error
        except (KeyError, TypeError, ValueError) as error:
            message = "%s holds no choices: %s %s" % (path, type(error).__name__, error)
            raise AgentError("bad_request", message, again) from error
        return cls(choices)

    def substitute(self, outputs: Mapping[str, torch.Tensor], inputs: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        """Write the reference's choice over an output that differs from it, and return the tensors that were written to.

        A choice of another shape or type, or of elements that there are not, stays as it is: it is no near tie.

        Args:
            outputs: What a call returned, by identity text.
            inputs: The tensors that it was given.

        Raises:
            AgentError: ``workload``: a choice cannot be read.
        """
        for record, own in outputs.items():
            choice = self._choices.get(record)
            if choice is None or choice.stored.shape != tuple(own.shape):
                continue
            try:
                chosen = self._files.read(choice.stored)
            except CannotCompute as error:
                raise AgentError("workload", "the reference's choice at %s: %s" % (record, error)) from error
            if chosen.dtype != own.dtype or torch.equal(chosen.to(own.device), own):
                continue
            values = [other for name, other in outputs.items() if name != record and other.is_floating_point()]
            picked = _pick(inputs[0], chosen, choice.dimension) if values and inputs else None
            if values and (picked is None or picked.shape != values[0].shape):
                continue
            # Not by way of autograd: its node keeps these very indices, so that the gradient goes where they point now, and
            # a version counter that was raised would make it refuse.
            own.data.copy_(chosen)
            if picked is not None:
                values[0].data.copy_(picked)
            self.replaced.append(record)
            return [own, *values[:1]]
        return []


def _pick(given: torch.Tensor, indices: torch.Tensor, dimension: Optional[int]) -> Optional[torch.Tensor]:
    """Return the elements of a tensor at indices along a dimension; ``None`` if it has no such elements."""
    if dimension is None or not given.dim() or not -given.dim() <= dimension < given.dim():
        return None
    dropped = indices.dim() < given.dim()  # max(dim=...) and its like leave the dimension out
    places = indices.unsqueeze(dimension) if dropped else indices
    if places.numel() and (int(places.min()) < 0 or int(places.max()) >= given.shape[dimension]):
        return None  # the next line would end the process of a device
    picked = given.data.gather(dimension, places.to(given.device))
    return picked.squeeze(dimension) if dropped else picked
