"""One step of an optimizer in float64, from the published formulas: what its weight and its state are afterwards.

Sources: Robbins and Monro 1951 with momentum as PyTorch's documentation of ``torch.optim.SGD`` writes it (the learning rate is
outside of the buffer, unlike in Sutskever et al. 2013); Kingma and Ba 2015, algorithm 1 (Adam); Loshchilov and Hutter 2019,
algorithm 2 (decoupled decay, AdamW); Reddi et al. 2018 (AMSGrad, maximum before the bias is corrected, as in PyTorch); Duchi
et al. 2011 (Adagrad); Hinton 2012, lecture 6e (RMSprop); Zeiler 2012 (Adadelta); Kingma and Ba 2015, section 7.1 (Adamax);
Dozat 2016 (NAdam); Liu et al. 2020, algorithm 2 (RAdam); each as PyTorch's documentation writes it.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
WEIGHT = ""
"""Key of the weight itself among the results of a step; state has the names that torch gives it."""


@dataclass(frozen=True)
class StepInputs:
    """What an optimizer begins a step of one parameter with.

    Attributes:
        weight: Before the step.
        gradient: As the optimizer sees it: unscaled, clipped.
        state: Tensors of its state before the step; empty in its first one.
        number: Number of this step, from 1.
        settings: Settings of the parameter group, as values: ``lr``, ``betas``...
    """

    weight: Floats
    gradient: Floats
    state: Mapping[str, Floats] = field(default_factory=dict)
    number: float = 1.0
    settings: Mapping[str, Any] = field(default_factory=dict)

    def setting(self, name: str, default: float = 0.0) -> float:
        """Return a setting as a number; ``None`` and a missing one are the default."""
        value = self.settings.get(name)
        return default if value is None else float(value)

    def zeros(self, name: str) -> Floats:
        """Return a tensor of the state, zeros in the first step."""
        return self.state.get(name, np.zeros_like(self.weight))


@dataclass(frozen=True)
class StepResults:
    """What a step makes of one parameter.

    Attributes:
        values: The weight after the step (``WEIGHT``) and each tensor of the state.
        terms: Elementwise sum of the magnitudes that each value was added up from: what its rounding is relative to.
    """

    values: Mapping[str, Floats]
    terms: Mapping[str, Floats]


_UNREADABLE = object()
_SAME_NUMBER = 1e-6  # relative; a float32 is off by 6e-8
Optimizer = Callable[[StepInputs], StepResults]


def read_settings(arguments: Mapping[str, str]) -> dict[str, Any]:
    """Return the recorded settings of a parameter group as values; one that is no Python literal is left out.

    >>> read_settings({"lr": "0.001", "betas": "(0.9, 0.999)", "hook": "<function f>"})
    {'lr': 0.001, 'betas': (0.9, 0.999)}
    """
    values = {name: _read_literal(text) for name, text in arguments.items()}
    return {name: value for name, value in values.items() if value is not _UNREADABLE}


def _read_literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return _UNREADABLE


def is_same_setting(one: Any, other: Any) -> bool:
    """Tell whether two settings are the same number; a rate that is a float32 tensor on one side is.

    >>> is_same_setting(0.1, 0.10000000149), is_same_setting((0.9, 0.999), (0.9, 0.95))
    (True, False)
    """
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(is_same_setting, one, other))
    numbers = isinstance(one, (int, float)) and isinstance(other, (int, float))
    return math.isclose(one, other, rel_tol=_SAME_NUMBER) if numbers else bool(one == other)


def step_sgd(given: StepInputs) -> StepResults:
    """Compute a step of SGD, with momentum, dampening, Nesterov's form and coupled decay."""
    rate, momentum = given.setting("lr"), given.setting("momentum")
    gradient = _signed_gradient(given)
    decay = given.setting("weight_decay") * given.weight
    step, size = gradient + decay, np.abs(gradient) + np.abs(decay)
    values, terms = {}, {}
    if momentum:
        if "momentum_buffer" in given.state:
            kept = momentum * given.state["momentum_buffer"]
            share = 1.0 - given.setting("dampening")
            buffer, buffer_size = kept + share * step, np.abs(kept) + abs(share) * size
        else:  # the first gradient is taken whole, without dampening
            buffer, buffer_size = step, size
        values["momentum_buffer"], terms["momentum_buffer"] = buffer, buffer_size
        step = step + momentum * buffer if given.settings.get("nesterov") else buffer
        size = size + momentum * buffer_size if given.settings.get("nesterov") else buffer_size
    values[WEIGHT], terms[WEIGHT] = given.weight - rate * step, np.abs(given.weight) + rate * size
    return StepResults(values, terms)


def step_adam(given: StepInputs) -> StepResults:
    """Compute a step of Adam: decay is part of the gradient."""
    return _step_adam(given, decoupled=bool(given.settings.get("decoupled_weight_decay")))


def step_adamw(given: StepInputs) -> StepResults:
    """Compute a step of AdamW: decay is taken from the weight itself."""
    return _step_adam(given, decoupled=True)


def _step_adam(given: StepInputs, *, decoupled: bool) -> StepResults:
    rate, epsilon, decay = given.setting("lr"), given.setting("eps", 1e-8), given.setting("weight_decay")
    first, second = given.settings.get("betas", (0.9, 0.999))
    weight, gradient = given.weight, _signed_gradient(given)
    size = np.abs(gradient)
    if decoupled:
        weight = weight * (1.0 - rate * decay)
    else:
        gradient, size = gradient + decay * weight, size + np.abs(decay * weight)
    mean = first * given.zeros("exp_avg") + (1.0 - first) * gradient
    mean_size = first * np.abs(given.zeros("exp_avg")) + (1.0 - first) * size
    square = second * given.zeros("exp_avg_sq") + (1.0 - second) * gradient**2
    values = {"exp_avg": mean, "exp_avg_sq": square}
    terms = {"exp_avg": mean_size, "exp_avg_sq": square + (1.0 - second) * size**2}
    largest = square
    if given.settings.get("amsgrad"):
        largest = np.maximum(given.zeros("max_exp_avg_sq"), square)
        values["max_exp_avg_sq"], terms["max_exp_avg_sq"] = largest, terms["exp_avg_sq"]
    corrected = given.settings.get("bias_correction", True)  # of apex
    corrections = [1.0 - beta**given.number if corrected else 1.0 for beta in (first, second)]
    inside = given.setting("eps_inside")  # some fused kernels add epsilon below the root
    root = np.sqrt(largest / corrections[1] + inside) + (0.0 if inside else epsilon)
    with np.errstate(divide="ignore", invalid="ignore"):  # 0 / 0 if epsilon is 0 and an element has no gradient yet
        update, update_size = (rate / corrections[0] * np.nan_to_num(one / root) for one in (mean, mean_size))
    values[WEIGHT], terms[WEIGHT] = weight - update, np.abs(given.weight) + update_size
    return StepResults(values, terms)


def step_adagrad(given: StepInputs) -> StepResults:
    """Compute a step of Adagrad."""
    gradient = _signed_gradient(given) + given.setting("weight_decay") * given.weight
    total = given.zeros("sum") + gradient**2
    rate = given.setting("lr") / (1.0 + (given.number - 1.0) * given.setting("lr_decay"))
    update = rate * gradient / (np.sqrt(total) + given.setting("eps", 1e-10))
    sizes = {WEIGHT: np.abs(given.weight) + np.abs(update), "sum": total}
    return StepResults({WEIGHT: given.weight - update, "sum": total}, sizes)


def step_rmsprop(given: StepInputs) -> StepResults:
    """Compute a step of RMSprop, centred or not, with or without momentum."""
    gradient = _signed_gradient(given) + given.setting("weight_decay") * given.weight
    alpha, momentum = given.setting("alpha", 0.99), given.setting("momentum")
    square = alpha * given.zeros("square_avg") + (1.0 - alpha) * gradient**2
    values = {"square_avg": square}
    spread = square
    if given.settings.get("centered"):
        values["grad_avg"] = alpha * given.zeros("grad_avg") + (1.0 - alpha) * gradient
        spread = square - values["grad_avg"] ** 2
    update = gradient / (np.sqrt(np.maximum(spread, 0.0)) + given.setting("eps", 1e-8))
    if momentum:
        update = values["momentum_buffer"] = momentum * given.zeros("momentum_buffer") + update
    terms = {name: np.abs(value) for name, value in values.items()}
    sizes = np.abs(given.weight) + given.setting("lr") * np.abs(update)
    return StepResults({**values, WEIGHT: given.weight - given.setting("lr") * update}, {**terms, WEIGHT: sizes})


def step_adadelta(given: StepInputs) -> StepResults:
    """Compute a step of Adadelta."""
    gradient = _signed_gradient(given) + given.setting("weight_decay") * given.weight
    rho, epsilon = given.setting("rho", 0.9), given.setting("eps", 1e-6)
    square = rho * given.zeros("square_avg") + (1.0 - rho) * gradient**2
    update = np.sqrt(given.zeros("acc_delta") + epsilon) / np.sqrt(square + epsilon) * gradient
    values = {"square_avg": square, "acc_delta": rho * given.zeros("acc_delta") + (1.0 - rho) * update**2}
    sizes = np.abs(given.weight) + given.setting("lr") * np.abs(update)
    return StepResults({**values, WEIGHT: given.weight - given.setting("lr") * update}, {**values, WEIGHT: sizes})


def step_adamax(given: StepInputs) -> StepResults:
    """Compute a step of Adamax."""
    weight, gradient = _decay(given)
    mean, mean_size, first, second = _average(given, gradient)
    largest = np.maximum(second * given.zeros("exp_inf"), np.abs(gradient) + given.setting("eps", 1e-8))
    rate = given.setting("lr") / (1.0 - first**given.number)
    values = {"exp_avg": mean, "exp_inf": largest, WEIGHT: weight - rate * mean / largest}
    terms = {"exp_avg": mean_size, "exp_inf": largest, WEIGHT: np.abs(weight) + rate * mean_size / largest}
    return StepResults(values, terms)


def step_nadam(given: StepInputs) -> StepResults:
    """Compute a step of NAdam; the product of its momenta follows from the number of the step."""
    weight, gradient = _decay(given)
    mean, mean_size, first, second = _average(given, gradient)
    square = second * given.zeros("exp_avg_sq") + (1.0 - second) * gradient**2
    root = np.sqrt(square / (1.0 - second**given.number)) + given.setting("eps", 1e-8)
    decay = given.setting("momentum_decay", 4e-3)
    momenta = first * (1.0 - 0.5 * 0.96 ** (np.arange(1, int(given.number) + 2) * decay))
    product = float(np.multiply.accumulate(momenta[:-1].astype(np.float32))[-1])  # PyTorch keeps it so, beside float64 too
    shares = (1.0 - momenta[-2]) / (1.0 - product), momenta[-1] / (1.0 - product * momenta[-1])
    rate = given.setting("lr")
    update = rate * (shares[0] * gradient + shares[1] * mean) / root
    update_size = rate * (shares[0] * np.abs(gradient) + shares[1] * mean_size) / root
    values = {"exp_avg": mean, "exp_avg_sq": square, WEIGHT: weight - update}
    return StepResults(values, {"exp_avg": mean_size, "exp_avg_sq": square, WEIGHT: np.abs(given.weight) + update_size})


def step_radam(given: StepInputs) -> StepResults:
    """Compute a step of RAdam: one of momentum alone until the variance can be estimated."""
    weight, gradient = _decay(given)
    mean, mean_size, first, second = _average(given, gradient)
    square = second * given.zeros("exp_avg_sq") + (1.0 - second) * gradient**2
    correction = 1.0 - second**given.number
    longest = 2.0 / (1.0 - second) - 1.0
    length = longest - 2.0 * given.number * second**given.number / correction
    factor = given.setting("lr") / (1.0 - first**given.number) * np.ones_like(mean)
    if length > 5.0:
        rectified = (length - 4.0) * (length - 2.0) * longest / ((longest - 4.0) * (longest - 2.0) * length)
        factor = factor * np.sqrt(rectified * correction) / (np.sqrt(square) + given.setting("eps", 1e-8))
    values = {"exp_avg": mean, "exp_avg_sq": square, WEIGHT: weight - factor * mean}
    return StepResults(values, {"exp_avg": mean_size, "exp_avg_sq": square, WEIGHT: np.abs(given.weight) + factor * mean_size})


def _decay(given: StepInputs) -> tuple[Floats, Floats]:
    """Return weight and gradient with the decay, which is part of the gradient unless the settings say otherwise."""
    decay, gradient = given.setting("weight_decay"), _signed_gradient(given)
    if given.settings.get("decoupled_weight_decay"):
        return given.weight * (1.0 - given.setting("lr") * decay), gradient
    return given.weight, gradient + decay * given.weight


def _average(given: StepInputs, gradient: Floats) -> tuple[Floats, Floats, float, float]:
    """Return the mean of the gradients, the sum of magnitudes that it was added up from, and both betas."""
    first, second = given.settings.get("betas", (0.9, 0.999))
    old = given.zeros("exp_avg")
    return first * old + (1.0 - first) * gradient, first * np.abs(old) + (1.0 - first) * np.abs(gradient), first, second


def _signed_gradient(given: StepInputs) -> Floats:
    return -given.gradient if given.settings.get("maximize") else given.gradient


OPTIMIZERS: Mapping[str, Optimizer] = {
    "SGD": step_sgd,
    "AdamW": step_adamw,
    "Adam": step_adam,
    "Adagrad": step_adagrad,
    "RMSprop": step_rmsprop,
    "Adadelta": step_adadelta,
    "Adamax": step_adamax,
    "NAdam": step_nadam,
    "RAdam": step_radam,
}


def find_optimizers(name: str) -> list[str]:
    """Return the names of the optimizers that a class may be, the likeliest first: fused ones are named after what they fuse.

    apex's ``FusedAdam`` decays as AdamW does unless told otherwise, which its settings do not show, so that both are tried.

    >>> find_optimizers("NpuFusedAdamW"), find_optimizers("FusedAdam"), find_optimizers("Lion")
    (['AdamW', 'Adam'], ['AdamW', 'Adam'], [])
    """
    known = [each for each in OPTIMIZERS if each.lower() in name.lower()]
    if not known:
        return []
    longest = max(known, key=len)  # NAdam is no Adam
    if longest in {"Adam", "AdamW"}:
        return ["Adam", "AdamW"] if name == "Adam" else ["AdamW", "Adam"]
    return [longest]
