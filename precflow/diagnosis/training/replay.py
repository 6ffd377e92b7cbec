"""Does the optimizer's step follow from its own gradient and state, with its own settings and with those of the reference?

Each side's step of each parameter is computed again in float64 from what that side recorded: the weight before, the gradient,
the state, and the settings of the parameter group. What arrived wrong is on both sides of the comparison, so that a wrong
gradient blames no optimizer. Only where the reference follows its formula does the target's step prove anything.

A step that does not follow is tried with other settings, one at a time: another epsilon, other betas, another learning rate,
decay or number of the step... A setting that gives the target's weights to within rounding is named as a possible cause.

A step that follows is tried with the reference's settings where these are others. Their difference is exact, and may be far
smaller than what rounding does to a weight in 16 bits: no norm shows it. But where the two results round to different numbers,
a step with the reference's settings lands nearer to the other result at most every second time, and one with its own
nearly always. A bias of the target's arithmetic could do that too, and would go on past its own result: so it also has to be
nearer to its own result than to one that is as far off on the other side.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from precflow.agent.contract import BEFORE, COPY_IN, OPTIMIZER
from precflow.comparison.fused.value_classes import widen
from precflow.diagnosis.evaluation import PairedCall
from precflow.diagnosis.introduced import IntroducedError
from precflow.diagnosis.training.optimizers import (
    OPTIMIZERS,
    WEIGHT,
    Floats,
    StepInputs,
    StepResults,
    find_optimizers,
    is_same_setting,
    read_settings,
)
from precflow.dumps.dtypes import FLOATS, NUMPY_DTYPES, float_facts
from precflow.dumps.protocol import Dump
from precflow.dumps.records import Call, Record
from precflow.errors import DumpError
from precflow.judgement import lines

ELEMENTS = 1 << 16
"""Most elements of one parameter that are looked at, evenly spaced: every formula here is elementwise."""
_ROUNDINGS = 4.0
_INSTEAD = " in place of "
_NUMBER = "step"  # state: how many steps were made; an argument where torch keeps it as a plain number
_EPSILONS = tuple(10.0**exponent for exponent in range(-3, -17, -1))
_BETAS = ((0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99), (0.9, 0.95, 0.98, 0.99, 0.999, 0.9999))
_DECAYS = (0.0, 1e-5, 1e-4, 5e-4, 1e-3, 0.01, 0.02, 0.05, 0.1)


@dataclass(frozen=True)
class ReplayedStep:
    """The optimizer's step of one parameter, computed again.

    Attributes:
        call: Name of the call, as :func:`precflow.diagnosis.evaluation.name_call` gives it.
        parameter: Module and name of the parameter.
        optimizer: The formula: ``AdamW``.
        reference: Largest error of the reference's weight and state, in units of four roundings; above 2 it does not follow.
        target: The same of the target.
        causes: Settings that give the target's step to within rounding, in words, the simplest first; empty if it follows.
        settings: Settings of which it is proven, in words, that the target's step follows its own and not the reference's.
        shown_by: What proves it: the weight (``""``), or by its name the tensor of the state that shows most.
        size: How far apart the two steps of that are, relative to the one with the reference's settings.
    """

    call: str
    parameter: str
    optimizer: str
    reference: float
    target: float
    causes: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    shown_by: str = WEIGHT
    size: float = 0.0

    @property
    def proves(self) -> bool:
        """The reference follows the formula, so that the target has to."""
        return self.reference <= lines.OPTIMIZER_STEP

    @property
    def is_fault(self) -> bool:
        """The target's step does not follow from its own gradient, state and settings."""
        return self.proves and not self.target <= lines.OPTIMIZER_STEP  # NaN is a fault


@dataclass(frozen=True)
class _RecordedStep:
    """One side's step of one parameter as it was recorded, a part of its elements."""

    given: StepInputs
    results: Mapping[str, Floats]
    dtypes: Mapping[str, str]
    optimizers: Sequence[str]


def replay_steps(reference: Dump, target: Dump, pairs: Sequence[PairedCall]) -> list[ReplayedStep]:
    """Compute the optimizer's steps again that both sides recorded with their tensors, weights and settings.

    Args:
        reference: Evidence of the reference.
        target: Evidence of the target.
        pairs: The calls that both sides made; only those of the optimizer are looked at.
    """
    replayed = (_replay(reference, target, pair) for pair in pairs if pair.reference.phase == OPTIMIZER)
    return [one for one in replayed if one is not None]


def judge_steps(replayed: Sequence[ReplayedStep], pairs: Sequence[PairedCall]) -> list[IntroducedError]:
    """Return what the replayed steps say about the outputs of their calls, those that prove something.

    Args:
        replayed: The steps.
        pairs: The calls that both sides made.
    """
    calls = {pair.name: pair.reference for pair in pairs}
    return [
        IntroducedError(
            call=one.call,
            index=f"{record.index}.{one.shown_by}" if one.shown_by else record.index,
            kind=OPTIMIZER,
            # Settings differ or they do not, and the difference is exact: no limit is too wide for it.
            rho=one.size if one.settings else one.target,
            share=math.inf if one.settings else one.target / lines.OPTIMIZER_STEP,
            measure="settings" if one.settings else "step",
            is_fault=one.is_fault or bool(one.settings),
            is_systematic=True,
            settings=", ".join(one.settings),
        )
        for one in replayed
        if one.proves and one.call in calls
        for record in calls[one.call].outputs[:1]
    ]


def choose_cause(replayed: Sequence[ReplayedStep]) -> tuple[str, int]:
    """Return the setting that explains most of the steps that do not follow, and how many of them it explains.

    A parameter of a few elements can be explained in several ways; all of them together rarely can.
    """
    faults = [one for one in replayed if one.is_fault]
    # What it takes the place of may change from step to step, as with a schedule.
    texts = {cause.partition(_INSTEAD)[0]: cause for one in reversed(faults) for cause in reversed(one.causes)}
    # `most_common` keeps the order of first appearance among equals: the simplest.
    counted = Counter(cause.partition(_INSTEAD)[0] for one in faults for cause in one.causes).most_common(1)
    return (texts[counted[0][0]], counted[0][1]) if counted else ("", 0)


def list_proven(replayed: Sequence[ReplayedStep]) -> list[str]:
    """Return the settings of which it is proven that they change the target's steps, those of most steps first."""
    proven = [text for one in replayed for text in one.settings]
    texts = {_name_setting(text): text for text in reversed(proven)}  # of a schedule that of the first step
    return [texts[name] for name, _ in Counter(map(_name_setting, proven)).most_common()]


def _name_setting(text: str) -> str:
    return text.partition(" is ")[0]


def _replay(reference: Dump, target: Dump, pair: PairedCall) -> ReplayedStep | None:
    try:
        here, there = _read_step(reference, pair.reference), _read_step(target, pair.target)
    except DumpError:  # the comparison has already called the record unreadable
        return None
    if here is None or there is None:
        return None
    name, own = _find_formula(here)
    # What one class of optimizer does on the reference, it has to do on the target.
    same_class = here.given.settings.get("optimizer") == there.given.settings.get("optimizer")
    other, error = (name, _measure(there, name, there.given)) if same_class else _find_formula(there)
    parameter = f"{pair.reference.module}.{pair.reference.outputs[0].index}".lstrip(".")
    replayed = ReplayedStep(pair.name, parameter, name if other == name else f"{name} / {other}", own, error)
    if not replayed.is_fault:
        return _try_settings(replayed, there, other, (name, here.given.settings)) if replayed.proves else replayed
    causes = [
        text for text, one, given in _list_changes(there, other, here.given.settings) if _measure(there, one, given) <= 1.0
    ]
    return replace(replayed, causes=tuple(dict.fromkeys(causes)))


def _find_formula(step: _RecordedStep) -> tuple[str, float]:
    """Return the optimizer that the step is of, by its formula, and the step's error."""
    errors = [(name, _measure(step, name, step.given)) for name in step.optimizers]
    fitting = [(name, error) for name, error in errors if error <= lines.OPTIMIZER_STEP]
    return fitting[0] if fitting else errors[0]


def _measure(step: _RecordedStep, optimizer: str, given: StepInputs) -> float:
    """Return the largest error of weight and state in units of four roundings of what they are added up from."""
    with np.errstate(all="ignore"):  # NaN and infinities give an error that is no number
        computed = OPTIMIZERS[optimizer](given)
        return max(_measure_one(step, computed, name) for name in computed.values)


def _measure_one(step: _RecordedStep, computed: StepResults, name: str) -> float:
    recorded = step.results.get(name)
    if recorded is None:
        return 0.0
    unit = 2.0 ** -float_facts(step.dtypes[name]).digits
    smallest = float_facts(step.dtypes[name]).smallest_normal * math.sqrt(recorded.size)
    expected = computed.values[name]
    finite = np.isfinite(recorded)
    if not finite.all():  # NaN follows from a gradient or a weight that is NaN
        if (finite != np.isfinite(expected)).any():
            return math.inf
        recorded, expected = recorded[finite], expected[finite]
    terms = computed.terms[name][finite]
    room = _ROUNDINGS * unit * float(np.linalg.norm(terms)) + smallest
    error = float(np.linalg.norm(recorded - expected)) / room
    return error if not math.isnan(error) else math.inf


# The reference's settings in place of its own


def _try_settings(
    replayed: ReplayedStep, step: _RecordedStep, optimizer: str, reference: tuple[str, Mapping[str, Any]]
) -> ReplayedStep:
    """Record which differing settings explain a step of the target that follows its own.

    Args:
        replayed: What is known of the step.
        step: The target's.
        optimizer: Its formula.
        reference: Formula and settings of the reference.
    """
    other, settings = reference
    own = step.given.settings
    names = [name for name, value in settings.items() if name != "optimizer" and not is_same_setting(own.get(name), value)]
    if not names and other == optimizer:
        return replayed
    # All at once: a rate and a decay may differ and give the same step.
    shown = _prove(step, optimizer, other, replace(step.given, settings={**own, **settings}))
    if not shown:
        return replayed
    shown_by = WEIGHT if WEIGHT in shown else max(shown, key=lambda name: shown[name])
    proven = [name for name in names if _prove(step, optimizer, optimizer, _with(step.given, name, settings[name]))]
    if proven or other == optimizer:
        texts = [f"{name} is {_format(own.get(name))}{_INSTEAD}{_format(settings[name])}" for name in proven or names]
    else:
        texts = [f"the optimizer is {optimizer}{_INSTEAD}{other}"]
    return replace(replayed, settings=tuple(texts), shown_by=shown_by, size=shown[shown_by])


def _prove(step: _RecordedStep, optimizer: str, other: str, given: StepInputs) -> dict[str, float]:
    """Return the tensors that prove that a step is that of its own settings and not of others, and how far apart these are."""
    with np.errstate(all="ignore"):
        own, others = OPTIMIZERS[optimizer](step.given), OPTIMIZERS[other](given)
        sizes = {name: _prove_by(step, name, own, others.values[name]) for name in own.values if name in others.values}
    return {name: size for name, size in sizes.items() if size is not None}


def _prove_by(step: _RecordedStep, name: str, own: StepResults, other: Floats) -> float | None:
    recorded = step.results.get(name)
    if recorded is None:
        return None
    expected, dtype = own.values[name], NUMPY_DTYPES[step.dtypes[name]]
    counts = []
    for result in (other, 2.0 * expected - other):
        different = np.flatnonzero(expected.astype(dtype) != result.astype(dtype))
        # The results that are farthest apart, in roundings of what they are added up from, show most.
        apart = np.abs(expected - result)[different] / own.terms[name][different]
        different = different[np.argsort(-apart)[: lines.SETTINGS_MOST]]
        nearer = np.abs(recorded - expected)[different] < np.abs(recorded - result)[different]
        counts.append((len(different), int(nearer.sum())))
    if any(number < lines.SETTINGS_FEWEST or right < lines.SETTINGS_SHARE * number for number, right in counts):
        return None
    begin = step.given.weight if name == WEIGHT else 0.0
    return _divide(float(np.linalg.norm(expected - other)), float(np.linalg.norm(other - begin)))


# Reading


def _read_step(dump: Dump, call: Call) -> _RecordedStep | None:
    """Return a recorded step; ``None`` if its formula is not known, or not all of it was stored whole."""
    settings = read_settings(call.arguments)
    optimizers = find_optimizers(str(settings.get("optimizer", "")))
    name = call.outputs[0].index if call.outputs else ""
    outputs = [record for record in call.outputs if not record.index.startswith(f"{name}.{COPY_IN}")]
    records = (*call.inputs, *outputs)
    if not optimizers or not call.outputs or any(not each.stored or each.part for each in records):
        return None
    given = {record.index: record for record in call.inputs}
    before = given.pop(f"{name}.{BEFORE}", None)
    gradient = given.pop(name, None)
    if before is None or gradient is None or before.dtype not in FLOATS or gradient.shape != before.shape:
        return None
    state = {index.removeprefix(f"{name}."): record for index, record in given.items()}
    results = {record.index.removeprefix(f"{name}."): record for record in outputs[1:]}
    number = _read_number(dump, results, settings)
    results.pop(_NUMBER, None)
    state.pop(_NUMBER, None)
    shaped = {key: record for key, record in results.items() if record.shape == before.shape and record.dtype in FLOATS}
    return _RecordedStep(
        given=StepInputs(
            weight=_read(dump, before),
            gradient=_read(dump, gradient),
            state={key: _read(dump, record) for key, record in state.items() if record.shape == before.shape},
            number=number,
            settings=settings,
        ),
        results={WEIGHT: _read(dump, call.outputs[0]), **{key: _read(dump, record) for key, record in shaped.items()}},
        dtypes={WEIGHT: call.outputs[0].dtype, **{key: record.dtype for key, record in shaped.items()}},
        optimizers=optimizers,
    )


def _read_number(dump: Dump, results: Mapping[str, Record], settings: Mapping[str, Any]) -> float:
    """Return the number of the step, from 1: the optimizer's own count after it."""
    if _NUMBER in results:
        return float(np.asarray(dump.tensor(results[_NUMBER])).reshape(-1)[0])
    return float(settings.get(_NUMBER) or 1.0)


def _read(dump: Dump, record: Record) -> Floats:
    """Return a tensor as flat float64, of a large one every n-th element."""
    flat = np.ascontiguousarray(dump.tensor(record)).reshape(-1)
    return widen(np.ascontiguousarray(flat[:: max(1, -(-flat.size // ELEMENTS))]))


# Other settings that may explain a step

_Change = tuple[str, str, StepInputs]  # in words, the formula, and what it is given


def _list_changes(step: _RecordedStep, optimizer: str, reference: Mapping[str, Any]) -> Iterator[_Change]:
    """Yield what may have been other than recorded, the simplest first."""
    given = step.given
    for name, value in reference.items():
        if name in given.settings and given.settings[name] != value and name != "optimizer":
            yield _change(optimizer, given, name, value)
    yield from _list_numbers(step, optimizer)
    for name in ("amsgrad", "nesterov", "maximize"):
        if name in given.settings:
            yield _change(optimizer, given, name, not given.settings[name])
    if given.settings.get("dampening"):
        yield _change(optimizer, given, "dampening", 0)
    if optimizer in {"Adam", "AdamW"}:
        yield from _list_changes_of_adam(given, optimizer)
    for dtype in (ml_dtypes.bfloat16, np.float16):
        name = np.dtype(dtype).name
        yield f"the gradient is rounded to {name}", optimizer, replace(given, gradient=_round(given.gradient, dtype))


def _list_numbers(step: _RecordedStep, optimizer: str) -> Iterator[_Change]:
    """Yield other values of the settings that are numbers."""
    given = step.given
    if given.setting("lr"):
        yield _change(optimizer, given, "lr", _fit_rate(step, optimizer))
    if "eps" in given.settings:
        fitted = _minimise(lambda power: _measure(step, optimizer, _with(given, "eps", 10.0**power)), -16.0, 0.0)
        for epsilon in (*_EPSILONS, 0.0, 10.0**fitted):
            yield _change(optimizer, given, "eps", epsilon)
        yield "eps is added below the root", optimizer, _with(given, "eps_inside", given.setting("eps"))
    if "weight_decay" in given.settings:
        for decay in (*_DECAYS, *([_fit_decay(step)] if optimizer == "AdamW" else [])):
            yield _change(optimizer, given, "weight_decay", decay)
    if "momentum" in given.settings:
        for momentum in _BETAS[0]:
            yield _change(optimizer, given, "momentum", momentum)


def _list_changes_of_adam(given: StepInputs, optimizer: str) -> Iterator[_Change]:
    first, second = given.settings.get("betas", (0.9, 0.999))
    for beta in _BETAS[0]:
        yield _change(optimizer, given, "betas", (beta, second))
    for beta in _BETAS[1]:
        yield _change(optimizer, given, "betas", (first, beta))
    yield _change(optimizer, given, "betas", (second, first))
    yield "the bias is not corrected", optimizer, _with(given, "bias_correction", value=False)
    for number in dict.fromkeys((given.number - 1, given.number + 1, 1.0)):
        if number >= 1:
            yield f"step {number:g} is counted in place of {given.number:g}", optimizer, replace(given, number=number)
    if given.setting("weight_decay"):
        other = {"Adam": "AdamW", "AdamW": "Adam"}[optimizer]
        kinds = {"Adam": "part of the gradient (Adam)", "AdamW": "taken from the weight itself (AdamW)"}
        yield f"decay is {kinds[other]}", other, _with(given, "decoupled_weight_decay", value=other == "AdamW")


def _change(optimizer: str, given: StepInputs, name: str, value: Any) -> _Change:
    shown = _format(value)
    return f"{name} is {shown}{_INSTEAD}{_format(given.settings[name])}", optimizer, _with(given, name, value)


def _format(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _with(given: StepInputs, name: str, value: Any) -> StepInputs:
    return replace(given, settings={**given.settings, name: value})


def _fit_rate(step: _RecordedStep, optimizer: str) -> float:
    """Return the learning rate that explains the weight best: every formula moves it by the rate times something."""
    given, rate = step.given, step.given.setting("lr")
    direction = (given.weight - OPTIMIZERS[optimizer](given).values[WEIGHT]) / rate
    return _divide(float(direction @ (given.weight - step.results[WEIGHT])), float(direction @ direction))


def _fit_decay(step: _RecordedStep) -> float:
    """Return the decoupled decay that explains the weight best."""
    given, rate = step.given, step.given.setting("lr")
    without = OPTIMIZERS["AdamW"](_with(given, "weight_decay", 0.0)).values[WEIGHT]
    decayed = rate * given.weight
    return _divide(float(decayed @ (without - step.results[WEIGHT])), float(decayed @ decayed))


def _divide(value: float, by: float) -> float:
    return value / by if by and math.isfinite(value / by) else 0.0


def _minimise(function: Callable[[float], float], low: float, high: float) -> float:
    """Return about where a function of one number is smallest: the best of a grid, then thirds around it."""
    grid = np.linspace(low, high, 33)
    best = int(np.argmin([function(float(point)) for point in grid]))
    left, right = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, len(grid) - 1)])
    for _ in range(40):
        third = (right - left) / 3
        if function(left + third) < function(right - third):
            right -= third
        else:
            left += third
    return (left + right) / 2


def _round(values: Floats, dtype: Any) -> Floats:
    with np.errstate(over="ignore"):
        return values.astype(np.float32).astype(dtype).astype(np.float64)
