"""Random numbers that are the same on every device: drawn on the CPU, and moved.

Generators of different devices give different numbers for the same seed. A workload that draws on its device is
therefore not comparable, unless its draws are taken from the CPU's generator. Every draw on a device is reported.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch
from torch.overrides import TorchFunctionMode

from precflow.agent.session.user_code import running_place

DRAWING = frozenset(
    "bernoulli bernoulli_ binomial cauchy_ exponential_ geometric_ gumbel_softmax log_normal_ multinomial normal normal_ "
    "poisson rand rand_like randint randint_like randn randn_like randperm random_ rrelu rrelu_ trunc_normal_ uniform_ "
    "kaiming_normal_ kaiming_uniform_ xavier_normal_ xavier_uniform_ orthogonal_ sparse_".split()
)
DROPOUT = frozenset(
    "dropout dropout_ dropout1d dropout2d dropout3d alpha_dropout alpha_dropout_ feature_dropout feature_dropout_ "
    "feature_alpha_dropout feature_alpha_dropout_".split()
)
INSIDE = "scaled_dot_product_attention"  # draws for its dropout inside a fused kernel: cannot be moved, only removed
_FACTORIES = frozenset("normal rand randint randn randperm".split())


class Draw(NamedTuple):
    """One place that draws on a device.

    Attributes:
        operator: Such as ``randn``.
        site: ``file:line in function``, or ``""``.
        device: Type of the device that the numbers are on.
        moved: They were drawn on the CPU.
    """

    operator: str
    site: str
    device: str
    moved: bool


class RandomNumbers(TorchFunctionMode):
    """While active, takes the draws of other devices from the CPU's generator and reports each place once.

    Args:
        move: Draw on the CPU; else only report.
        remove_dropout: Functional dropout in training returns its input.
    """

    def __init__(self, *, move: bool, remove_dropout: bool) -> None:
        super().__init__()
        self.removed: List[str] = []  # sites of functional dropout that was removed
        self._move = move
        self._remove_dropout = remove_dropout
        self._draws: Dict[Draw, None] = {}
        self._twins: Dict[int, Tuple[torch.Generator, torch.Generator]] = {}  # the original is kept alive with its twin

    @property
    def draws(self) -> List[Draw]:
        """Every place that drew on a device, in order of its first draw."""
        return list(self._draws)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Optional[Mapping[str, Any]] = None
    ) -> Any:
        """Run one torch function; see the class."""
        arguments = dict(kwargs or {})
        name = str(getattr(func, "__name__", ""))
        if name in DRAWING:
            return self._drawn(func, name, args, arguments)
        if name in DROPOUT and _drops(args, arguments):
            if self._remove_dropout:
                self._removed()
                return args[0] if args else arguments["input"]
            return self._drawn(func, name, args, arguments)
        if name == INSIDE:
            return func(*args, **self._attention(args, arguments))
        return func(*args, **arguments)

    def _drawn(self, func: Callable[..., Any], name: str, args: Sequence[Any], arguments: Dict[str, Any]) -> Any:
        device = _device(name, args, arguments)
        if device.type in ("cpu", "meta"):
            return func(*args, **arguments)
        self._report(name, device, moved=self._move)
        return self._on_cpu(func, name, args, arguments, device) if self._move else func(*args, **arguments)

    def _on_cpu(
        self, func: Callable[..., Any], name: str, args: Sequence[Any], arguments: Dict[str, Any], device: torch.device
    ) -> Any:
        """Run the function on CPU copies; what it wrote into its first argument is written back."""
        if name in _FACTORIES or "device" in arguments:
            arguments["device"] = torch.device("cpu")
        first = args[0] if args else arguments.get("tensor", arguments.get("input"))
        copies: Dict[int, torch.Tensor] = {}
        result = func(
            *[self._host(value, copies) for value in args], **{k: self._host(v, copies) for k, v in arguments.items()}
        )
        if isinstance(first, torch.Tensor) and result is copies.get(id(first)):
            with torch.no_grad():
                return first.copy_(copies[id(first)])
        return result.to(device)

    def _host(self, value: Any, copies: Dict[int, torch.Tensor]) -> Any:
        if isinstance(value, torch.Generator):
            return self._twin(value)
        if not isinstance(value, torch.Tensor):
            return value
        copies[id(value)] = value.cpu()
        return copies[id(value)]

    def _twin(self, generator: torch.Generator) -> torch.Generator:
        """Return a CPU generator with the seed of the device's, the same one each time."""
        if generator.device.type == "cpu":
            return generator
        known = self._twins.get(id(generator))
        if known is None:
            known = (generator, torch.Generator().manual_seed(generator.initial_seed()))
            self._twins[id(generator)] = known
        return known[1]

    def _attention(self, args: Sequence[Any], arguments: Dict[str, Any]) -> Dict[str, Any]:
        device = args[0].device if args else arguments["query"].device
        if not arguments.get("dropout_p", 0.0):
            return arguments
        if self._remove_dropout:
            self._removed()
            return {**arguments, "dropout_p": 0.0}
        self._report(INSIDE, device, moved=False)
        return arguments

    def _report(self, name: str, device: torch.device, *, moved: bool) -> None:
        if device.type != "cpu":
            self._draws.setdefault(Draw(name, running_place(), device.type, moved))

    def _removed(self) -> None:
        site = running_place()
        if site not in self.removed:
            self.removed.append(site)


def _drops(args: Sequence[Any], arguments: Mapping[str, Any]) -> bool:
    """Tell whether a call of functional dropout would draw: ``(input, p, training)``."""
    probability = args[1] if len(args) > 1 else arguments.get("p", 0.5)
    training = args[2] if len(args) > 2 else arguments.get("training", arguments.get("train", True))
    return bool(training) and probability > 0


def _device(name: str, args: Sequence[Any], arguments: Mapping[str, Any]) -> torch.device:
    """Return the device that the numbers will be on: asked for, of a tensor argument, or the default one."""
    if arguments.get("device") is not None:
        return torch.device(arguments["device"])
    tensors = [value for value in (*args, *arguments.values()) if isinstance(value, torch.Tensor)]
    if tensors:
        return tensors[0].device
    generator = arguments.get("generator")
    if name in _FACTORIES and not isinstance(generator, torch.Generator):
        return torch.empty(0).device
    return torch.device("cpu") if generator is None else torch.device(generator.device)
