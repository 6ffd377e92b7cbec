"""Another number in place of an argument, where no list of values can hold it: it is fitted.

A fused attention scales by the root of the model's width, or an ``eps`` is added to a norm in place of bounding it. The call
is run again in float64 with other numbers, first with powers of ten and two, then by steps of Gauss and Newton from the best
one. One free number explains any single one, so outputs of fewer than 16 elements are left out.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

import torch

from precflow.agent.hypotheses.arguments import CallArguments, Other
from precflow.agent.hypotheses.subject import Candidate, Hypothesis, Subject
from precflow.agent.replay import operators
from precflow.agent.replay.calls import CannotCompute, RecordedCall
from precflow.agent.replay.readings import widen

Tensors = Mapping[str, torch.Tensor]
Results = Dict[str, torch.Tensor]
_GRID = (*(10.0**power for power in range(-8, 1)), *(2.0**power for power in range(-6, 5)))
_STEPS, _MOVED = 8, 1e-5  # of Gauss and Newton, and the relative change that slopes are taken with
_DIGITS = (2, 3, 4, 6)  # a number of fewer digits that fits as well is meant
_AS_WELL = 1.05
_FEWEST = 16  # elements of an output
_RUNS = len(_GRID) + 2 * _STEPS + len(_DIGITS)


class Family(NamedTuple):
    """Computations of a call that differ by one positive number.

    Attributes:
        argument: What the number is called.
        recorded: Text of what the call was given.
        near: The number that the call was given, or one of its size; tried with multiples.
        call: Returns the call with another number; ``None`` if no argument says it.
        compute: Returns the results with a number; ``None`` if the call with it is run.
    """

    argument: str
    recorded: str
    near: float
    call: Optional[Callable[[float], RecordedCall]] = None
    compute: Optional[Callable[[float, Tensors], Results]] = None


def propose(subject: Subject) -> Iterator[Candidate]:
    """Yield the call with fitted numbers."""
    call, outputs = subject.call, subject.side.outputs
    inputs = {path: widen(tensor) for path, tensor in subject.side.inputs.items()}

    def run(other: RecordedCall) -> Results:
        """Return the results of the call with another number."""
        return dict(subject.computation.varied(other, operators.kind_of(other)).compute(inputs, outputs))

    return (other.as_candidate(subject) for other in fit_others(call, inputs, outputs, run))


def fit_others(call: RecordedCall, inputs: Tensors, target: Tensors, run: Callable[[RecordedCall], Results]) -> Iterator[Other]:
    """Yield the call with fitted numbers.

    Args:
        call: The call.
        inputs: The target's, in float64.
        target: Its outputs as they were recorded.
        run: Computes a call at these inputs in float64.
    """
    if max((tensor.numel() for tensor in target.values()), default=0) < _FEWEST:
        return
    for family in _list_families(call):
        compute = _bind(family, inputs, run)
        value = _fit(compute, target, family.near)
        if value is None:
            continue
        made = call if family.call is None else family.call(value)
        change = None if family.compute is None else functools.partial(family.compute, value)
        yield Other(family.argument, family.recorded, repr(value), made, compute=change, is_fitted=True)


def _bind(family: Family, inputs: Tensors, run: Callable[[RecordedCall], Results]) -> Callable[[float], Results]:
    def compute(value: float) -> Results:
        """Return the results with a number."""
        if family.compute is not None:
            return family.compute(value, inputs)
        assert family.call is not None
        return run(family.call(value))

    return compute


def _fit(compute: Callable[[float], Results], target: Tensors, near: float) -> Optional[float]:
    """Return the number that leaves the least error; ``None`` if the outputs do not hang on it."""

    def difference(value: float) -> torch.Tensor:
        """Return all outputs less the target's, in one row."""
        made = compute(value)
        parts = [(made[index] - output.to(torch.float64)).reshape(-1) for index, output in target.items() if index in made]
        return torch.nan_to_num(torch.cat(parts), 0.0, 0.0, 0.0)

    def energy(value: float) -> float:
        """Return the square of that; infinity for a number that the function does not take."""
        try:
            return float(difference(value).pow(2).sum())
        except (CannotCompute, RuntimeError, TypeError, ValueError):
            return math.inf

    tried = {value: energy(value) for value in (*_GRID, *(near * 2.0**power for power in range(-3, 4)))}
    best = min(tried, key=lambda value: tried[value])
    known = [each for each in tried.values() if math.isfinite(each)]
    if not known or tried[best] >= max(known):
        return None
    for _ in range(_STEPS):
        rest = difference(best)
        slope = (difference(best * (1 + _MOVED)) - rest) / (best * _MOVED)
        square = float(slope.dot(slope))
        step = -float(slope.dot(rest)) / square if square > 0.0 else 0.0
        moved = min(max(best + step, best / 4), best * 4)
        if not math.isfinite(moved) or energy(moved) >= float(rest.dot(rest)):
            break
        best = moved
    least = energy(best)
    short = (float("%.*g" % (digits, best)) for digits in _DIGITS)
    return next((value for value in short if energy(value) <= _AS_WELL * least), best)


# The functions.


def _list_families(call: RecordedCall) -> List[Family]:
    given = CallArguments(call)
    found: List[Family] = []
    for names, place, default in _NUMBERS.get(call.operator.rstrip("_"), ()):
        try:
            recorded = given.value(names, place, default=None)
            usual = default(given) if callable(default) else default
        except (CannotCompute, IndexError, TypeError, ValueError):  # an argument of a form that is not known here
            continue
        near = float(usual if recorded is None else recorded)
        replaced = functools.partial(given.replaced, names, place)
        found.append(
            Family(names.split(maxsplit=1)[0], repr(usual if recorded is None else recorded), abs(near) or 1.0, replaced)
        )
    if call.operator == "normalize":
        found += _normalize_otherwise(given)
    return found


def _scale_of_attention(given: CallArguments) -> float:
    return 1 / math.sqrt(given.shape("query", 0)[-1])


def _normalize_otherwise(given: CallArguments) -> List[Family]:
    """Return the forms of a ``normalize`` whose constant is added, to the norm or under the root, in place of bounding it."""
    try:
        path, power = given.path("input", 0), float(given.value("p", 1, default=2.0))
        axis, recorded = given.value("dim", 2, default=1), repr(given.value("eps", 3, default=1e-12))
    except (CannotCompute, TypeError, ValueError):
        return []
    if power != 2.0:
        return []

    def add_to_norm(value: float, tensors: Tensors) -> Results:
        """Return the values over their norm and a constant."""
        return {"0": tensors[path] / (tensors[path].norm(2, axis, keepdim=True) + value)}

    def add_under_root(value: float, tensors: Tensors) -> Results:
        """Return the values over the root of the sum of their squares and a constant."""
        return {"0": tensors[path] / (tensors[path].pow(2).sum(axis, keepdim=True) + value).sqrt()}

    return [
        Family("eps_added_to_norm", recorded, 1e-6, compute=add_to_norm),
        Family("eps_under_root", recorded, 1e-6, compute=add_under_root),
    ]


_Number = Tuple[str, int, Any]
_NUMBERS: Dict[str, Tuple[_Number, ...]] = {
    "scaled_dot_product_attention": (("scale", -1, _scale_of_attention),),
    "scaled_dot_product_flash_attention_for_cpu": (("scale", -1, _scale_of_attention),),
    "normalize": (("eps", 3, 1e-12),),
    "instance_norm": (("eps", 7, 1e-5),),
    "cosine_similarity": (("eps", 3, 1e-8),),
    "pairwise_distance": (("eps", 3, 1e-6),),
    "local_response_norm": (("k", 4, 1.0), ("alpha", 2, 1e-4), ("beta", 3, 0.75)),
    "elu": (("alpha", 1, 1.0),),
    "celu": (("alpha", 1, 1.0),),
    "softplus": (("beta", 1, 1.0),),
    "hardshrink": (("lambd", 1, 0.5),),
    "softshrink": (("lambd", 1, 0.5),),
    "cross_entropy": (("label_smoothing", 7, 0.0),),
    "smooth_l1_loss": (("beta", 5, 1.0),),
    "huber_loss": (("delta", 3, 1.0),),
    "triplet_margin_loss": (("margin", 3, 1.0),),
    "add": (("alpha", -1, 1.0),),
    "sub": (("alpha", -1, 1.0),),
    "addmm": (("alpha", -1, 1.0), ("beta", -1, 1.0)),
    "baddbmm": (("alpha", -1, 1.0), ("beta", -1, 1.0)),
    "addcmul": (("value", -1, 1.0),),
    "addcdiv": (("value", -1, 1.0),),
}

HYPOTHESIS = Hypothesis("argument", propose, runs=_RUNS)
