"""Numerical rules of the emulated device: which operators compute differently, in which module, phase and call, and how.

A rule is plain data, such as ``{"operator": "addmm", "rule": "scale", "factor": 1.01, "module": "encoder.layers.5.mlp.fc1"}``.
Keys of every rule: ``operator`` (aten names or patterns, a list or joined by ``|``), ``rule`` (an effect of
:mod:`~precflow.agent.emulated.effects`), ``module`` (pattern over the innermost running module; needs :class:`Watch`),
``phase`` (``forward`` or ``backward``), ``inputs`` (element type of a tensor that the call is given, such as ``float16``: a
device has a kernel for each), ``call`` (which of the matching calls, from 0; the count restarts at each forward of the watched
model). All other keys are parameters of the effect. ``redraw`` takes only ``parameter``.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Callable, Dict, FrozenSet, Iterable, List, Mapping, Optional, Sequence, Tuple

import torch

from precflow.agent.contract import BACKWARD, FAULT_INPUTS, FAULT_KEYS, FAULT_PHASES, REDRAW
from precflow.agent.emulated import effects, fallback, private, switches
from precflow.agent.emulated.fallback import Compute
from precflow.agent.emulated.relabel import DEVICE_TYPE
from precflow.agent.emulated.schemas import Operator

_TYPES: Dict[str, Tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "bool": (bool,),
    "Union[float, str]": (int, float, str),
}


@dataclass
class _ActiveRule:
    """One checked rule, the number of calls that it has matched since the forward began, and whether it ever acted."""

    operators: Tuple[str, ...]
    effect: effects.Effect
    name: str
    module: str
    phase: str
    inputs: Optional[torch.dtype]
    calls: FrozenSet[int]
    parameters: Mapping[str, Any]
    seen: int = 0
    acted: bool = False

    def touches(self, operator: Operator) -> bool:
        """Tell whether the rule is about this operator; a pattern may match its name or its name with overload."""
        names = (operator.name, operator.overload)
        return any(fnmatchcase(name, pattern) for name in names for pattern in self.operators)

    def applies(self, given: Iterable[Any]) -> bool:
        """Tell whether the rule acts on a call with these arguments; counts it if phase, module and element type match."""
        backward = private.running_backward() != -1
        if self.phase and (self.phase == BACKWARD) != backward:
            return False
        # Module hooks run in forward only, so during backward no module counts as running.
        if self.module and (backward or not fnmatchcase(_running[-1] if _running else "", self.module)):
            return False
        if self.inputs is not None and not any(getattr(value, "dtype", None) == self.inputs for value in given):
            return False
        self.seen += 1
        return not self.calls or self.seen - 1 in self.calls

    def run(self, operator: Operator, compute: Compute, *arguments: Any, **named: Any) -> Any:
        """Compute, with the rule's effect if it applies to this call."""
        if not self.applies((*arguments, *named.values())):
            return compute(*arguments, **named)
        self.acted = True
        return self.effect(operator, compute, arguments, named)


_rules: List[_ActiveRule] = []
_by_operator: Dict[str, Tuple[_ActiveRule, ...]] = {}
_running: List[str] = []  # names of the running modules of the watched model, the innermost last


def configure(rules: Sequence[Mapping[str, Any]]) -> None:
    """Replace all rules; an empty sequence means exact arithmetic. Also resets the HF32 switches to what the rules say.

    Raises:
        ValueError: Lists every problem of every rule: unknown rule, key or phase, wrong type, missing parameter.
    """
    problems: List[str] = []
    checked = [_check_rule(number, rule, problems) for number, rule in enumerate(rules)]
    if problems:
        raise ValueError("rules of the emulated device:\n  " + "\n  ".join(problems))
    _rules[:] = [rule for rule in checked if rule is not None]
    _by_operator.clear()
    switched = {rule.parameters.get("unit", "matmul") for rule in _rules if rule.parameters.get("switched")}
    switches.matmul.allow_hf32 = "matmul" in switched
    switches.conv.allow_hf32 = True  # the default of torch_npu; that of matmul is off
    # Without rules that touch operators, nothing is wrapped, so a fault-free run does not pay for this.
    fallback.intercept(_intercept if any(rule.name != REDRAW for rule in _rules) else None)


def _intercept(operator: Operator, compute: Compute) -> Compute:
    touching = _by_operator.get(operator.overload)
    if touching is None:
        touching = tuple(rule for rule in _rules if rule.name != REDRAW and rule.touches(operator))
        _by_operator[operator.overload] = touching
    for rule in touching:
        compute = functools.partial(rule.run, operator, compute)
    return compute


def redraw(model: torch.nn.Module) -> List[str]:
    """Draw the parameters that a ``redraw`` rule names anew, with the device's generator, and return their names.

    Mean and standard deviation are kept. This imitates an initialization on the device, whose generator gives other numbers
    than the CPU's. Call it before weights are hashed.
    """
    patterns = [rule.parameters["parameter"] for rule in _rules if rule.name == REDRAW]
    redrawn = []
    for name, parameter in model.named_parameters():
        if not any(fnmatchcase(name, pattern) for pattern in patterns):
            continue
        values = parameter.detach().float()
        drawn = torch.randn(parameter.shape, device=DEVICE_TYPE).to(parameter.device)
        with torch.no_grad():
            parameter.copy_(drawn * values.std(unbiased=False) + values.mean())
        redrawn.append(name)
    for rule in _rules:
        rule.acted = rule.acted or (rule.name == REDRAW and bool(redrawn))
    return redrawn


def are_idle() -> bool:
    """Tell whether there are rules but none has acted since :func:`configure`: the model has nothing that they match."""
    return bool(_rules) and not any(rule.acted for rule in _rules)


class Watch:
    """Hooks that keep track of the running module of a model, for rules that name one, until :meth:`remove`.

    Call counts of the rules restart at each forward of the model.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._handles: List[Any] = []
        for name, module in model.named_modules():
            self._handles.append(module.register_forward_pre_hook(functools.partial(_enter, name)))
            # always_call: the hook must also run if forward raises, or the name would stay on the stack.
            self._handles.append(module.register_forward_hook(_leave, always_call=True))

    def remove(self) -> None:
        """Remove the hooks; a second call does nothing."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        _running.clear()


def _enter(name: str, _module: torch.nn.Module, _arguments: Any) -> None:
    if not _running:  # the outermost module: a new forward of the model begins
        for rule in _rules:
            rule.seen = 0
    _running.append(name)


def _leave(_module: torch.nn.Module, _arguments: Any, _outputs: Any) -> None:
    if _running:
        _running.pop()


def _check_rule(number: int, rule: Mapping[str, Any], problems: List[str]) -> Optional[_ActiveRule]:
    where = "rule %d" % number
    name = rule.get("rule")
    if name not in effects.KNOWN:
        problems.append("%s: %r is no rule; known: %s" % (where, name, ", ".join(sorted(effects.KNOWN))))
        return None
    parameters = {key: value for key, value in rule.items() if key not in FAULT_KEYS}
    factory = effects.KNOWN[str(name)]
    wrong = _common_problems(rule) + _parameter_problems(factory, parameters)
    if wrong:
        problems += ["%s (%s): %s" % (where, name, text) for text in wrong]
        return None
    try:
        effect = factory(**parameters)
    except ValueError as error:
        problems.append("%s (%s): %s" % (where, name, error))
        return None
    call = rule.get("call", ())
    return _ActiveRule(
        operators=_patterns(rule.get("operator", ())),
        effect=effect,
        name=str(name),
        module=rule.get("module", ""),
        phase=rule.get("phase", ""),
        inputs=getattr(torch, rule["inputs"]) if rule.get("inputs") else None,
        calls=frozenset((call,) if isinstance(call, int) else call),
        parameters=parameters,
    )


def _patterns(operator: Any) -> Tuple[str, ...]:
    return tuple(operator.split("|")) if isinstance(operator, str) else tuple(operator)


def _common_problems(rule: Mapping[str, Any]) -> List[str]:
    if rule["rule"] == REDRAW:
        return ["takes only parameter, not %s" % key for key in FAULT_KEYS if key in rule and key != "rule"]
    phase, module, call = rule.get("phase", ""), rule.get("module", ""), rule.get("call", ())
    inputs = rule.get("inputs", "")
    operators = _patterns(rule.get("operator", ())) if isinstance(rule.get("operator", ()), (str, list, tuple)) else ()
    numbers = [call] if isinstance(call, int) else call
    are_counts = isinstance(numbers, (list, tuple)) and all(
        isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in numbers
    )
    tests = (
        (
            not operators or not all(isinstance(o, str) and o for o in operators),
            "operator must be aten names or patterns, got %r" % rule.get("operator"),
        ),
        (not isinstance(module, str), "module must be a pattern, got %r" % (module,)),
        (phase not in ("", *FAULT_PHASES), "phase must be forward or backward, got %r" % (phase,)),
        (bool(module) and phase == BACKWARD, "a backward rule cannot name a module: none is running then"),
        (inputs not in ("", *FAULT_INPUTS), "inputs must be one of %s, got %r" % (", ".join(FAULT_INPUTS), inputs)),
        (not are_counts, "call must be numbers from 0, got %r" % (call,)),
    )
    return [text for wrong, text in tests if wrong]


def _parameter_problems(factory: Callable[..., effects.Effect], given: Mapping[str, Any]) -> List[str]:
    known = inspect.signature(factory).parameters
    listed = ", ".join("%s (%s)" % (name, parameter.annotation) for name, parameter in known.items()) or "none"
    unknown = ["unknown parameter %r; known: %s" % (name, listed) for name in given if name not in known]
    missing = [
        "parameter %r is missing; known: %s" % (name, listed)
        for name, parameter in known.items()
        if parameter.default is inspect.Parameter.empty and name not in given
    ]
    wrong = [
        "parameter %r must be %s, got %r" % (name, known[name].annotation, value)
        for name, value in given.items()
        if name in known and not _fits(value, str(known[name].annotation))
    ]
    return unknown + missing + wrong


def _fits(value: Any, annotation: str) -> bool:
    # A bool is an int for isinstance, but "factor: true" in a recipe is a mistake.
    if isinstance(value, bool) and annotation != "bool":
        return False
    # The effect itself refuses a text that is none of its choices.
    return isinstance(value, str if annotation.startswith("Literal[") else _TYPES[annotation])
