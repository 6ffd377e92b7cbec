"""A call with another argument: how a hypothesis reads the arguments of a call, and what it changes of them."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

import torch

from precflow.agent.hypotheses.subject import Candidate, Subject
from precflow.agent.replay import operators
from precflow.agent.replay.calls import CannotCompute, RecordedCall, parse_argument
from precflow.agent.replay.readings import widen

Tensors = Mapping[str, torch.Tensor]
Change = Callable[[Tensors], Dict[str, torch.Tensor]]


class Other(NamedTuple):
    """A call with another value of one argument.

    Attributes:
        argument: The argument, as torch names it.
        recorded: Text of the value that the call was given, or of the default.
        value: Text of the other one.
        call: The call with it.
        change: What it does to the input tensors, in float64, where no argument of the function says it.
        compute: Takes the input tensors in float64 and returns the results, where the function itself cannot compute it.
        is_fitted: Its value is no choice of the table, but a number that was fitted to the target.
    """

    argument: str
    recorded: str
    value: str
    call: RecordedCall
    change: Optional[Change] = None
    compute: Optional[Change] = None
    is_fitted: bool = False

    def as_candidate(self, subject: Subject) -> Candidate:
        """Return it as something that the engine tries."""
        return Candidate(
            "other_value",
            lambda: subject.round_ways(self._compute(subject)),
            value=self.value,
            argument=self.argument,
            recorded=self.recorded,
            is_fitted=self.is_fitted,
            measure=lambda: subject.measure_other(self.call, change=self.change, compute=self.compute),
        )

    def _compute(self, subject: Subject) -> Mapping[str, torch.Tensor]:
        """Return the results at the target's inputs.

        Raises:
            CannotCompute: The call does not run with it.
        """
        inputs = {path: widen(tensor) for path, tensor in subject.side.inputs.items()}
        if self.compute is not None:
            return self.compute(inputs)
        changed = inputs if self.change is None else self.change(inputs)
        return subject.computation.varied(self.call, operators.kind_of(self.call)).compute(changed, subject.side.outputs)


class CallArguments:
    """The arguments of a call.

    Args:
        call: The call.
    """

    def __init__(self, call: RecordedCall) -> None:
        self.call = call
        self._paths = {stored.index: stored.shape for side in call.sides.values() for stored in side.inputs}

    def value(self, names: str, place: int, *, default: Any) -> Any:
        """Return an argument that is no tensor, by one of its names or its place.

        Raises:
            CannotCompute: It is a tensor, or cannot be read.
        """
        key = self._find(names, place)
        if key in self._paths:
            raise CannotCompute("it is a tensor")
        return default if key is None else parse_argument(self.call.arguments[key])

    def shape(self, name: str, place: int) -> Tuple[int, ...]:
        """Return the shape of a tensor.

        Raises:
            CannotCompute: The call was not given it.
        """
        return self._paths[self.path(name, place)]

    def path(self, name: str, place: int) -> str:
        """Return the path of a tensor.

        Raises:
            CannotCompute: The call was not given it.
        """
        key = self._find(name, place)
        if key not in self._paths:
            raise CannotCompute("there is no tensor %s" % name)
        return str(key)

    def find_from(self, place: int) -> List[str]:
        """Return the paths of the tensors from this place on, those in a list at it among them."""
        heads = {path: path.partition(".")[0] for path in self._paths}
        return [path for path, head in heads.items() if head.isdigit() and int(head) >= place]

    def replaced(self, names: str, place: int, value: Any) -> RecordedCall:
        """Return the call with another value; one that was not given is added by its first name.

        ``None`` for an argument that is given by name alone leaves it out: some functions take no ``None`` for what they lack.
        """
        key = self._find(names, place) or names.split(maxsplit=1)[0]
        arguments = {**self.call.arguments, key: repr(value)}
        if value is None and place < 0:
            del arguments[key]
        return self.call._replace(arguments=arguments)

    def _find(self, names: str, place: int) -> Optional[str]:
        keys = [*names.split(), *([str(place)] if place >= 0 else [])]
        return next((key for key in keys if key in self.call.arguments or key in self._paths), None)
