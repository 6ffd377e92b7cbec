"""Random numbers that are the same on every device: they are drawn on the CPU and moved.

Generators of different devices give different numbers for the same seed, so two sides that draw on their devices compute with
different values. A function mode therefore runs such draws on the CPU (see :mod:`precflow.agent.capture.torch_functions` for
what a function mode is)::

    torch.randn(4, device="npu")    ->    torch.randn(4, device="cpu").to("npu")

Every place that draws on a device is reported.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch
from torch.overrides import TorchFunctionMode

from precflow.agent.capture.torch_functions import leave_mode
from precflow.agent.capture.wrappers import is_compiling
from precflow.agent.session.user_code import find_running_line, find_running_place

DRAWING = frozenset(
    "bernoulli bernoulli_ binomial cauchy_ exponential_ geometric_ gumbel_softmax log_normal_ multinomial normal normal_ "
    "poisson rand rand_like randint randint_like randn randn_like randperm random_ rrelu rrelu_ trunc_normal_ uniform_ "
    "kaiming_normal_ kaiming_uniform_ xavier_normal_ xavier_uniform_ orthogonal_ sparse_".split()
)
DROPOUT = frozenset(
    "dropout dropout_ dropout1d dropout2d dropout3d alpha_dropout alpha_dropout_ feature_dropout feature_dropout_ "
    "feature_alpha_dropout feature_alpha_dropout_".split()
)
ATTENTION = "scaled_dot_product_attention"  # its dropout draws inside a fused kernel: it can be removed, but not moved
_DROPOUT_OF_ATTENTION = 4  # its position, behind query, key, value and mask; is_causal follows, the rest have names only
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
    """A function mode that moves draws from other devices to the CPU, and reports each place that draws once.

    Args:
        move: Draw on the CPU; if not, only report.
        remove_dropout: Functional dropout in training returns its input.

    Attributes:
        removed: Lines of user code where functional dropout was removed.
        places: Path and line of each place that drew on a device -> the first operator that drew there.
    """

    def __init__(self, *, move: bool, remove_dropout: bool) -> None:
        super().__init__()
        self.removed: List[str] = []
        self.places: Dict[Tuple[str, int], str] = {}
        self._move = move
        self._remove_dropout = remove_dropout
        self._active = False
        self._draws: Dict[Draw, None] = {}
        # id of a device generator -> itself (held, so that the id stays valid) and its twin on the CPU
        self._twins: Dict[int, Tuple[torch.Generator, torch.Generator]] = {}

    def start(self) -> None:
        """Begin to listen; does nothing if it listens already."""
        if not self._active:
            self._active = True
            self.__enter__()  # type: ignore[no-untyped-call]  # torch has not annotated it

    def stop(self) -> None:
        """Stop listening, also if other modes were entered since."""
        if self._active:
            self._active = False
            leave_mode(self)

    @property
    def draws(self) -> List[Draw]:
        """Every place that drew on a device, in order of its first draw."""
        return list(self._draws)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Optional[Mapping[str, Any]] = None
    ) -> Any:
        """Run one torch function; see the class."""
        arguments = dict(kwargs or {})
        only_lists = not self._move and not self._remove_dropout
        name = "" if only_lists and is_compiling() else str(getattr(func, "__name__", ""))  # code that is traced keeps no list
        if name in DRAWING:
            return self._draw(func, name, args, arguments)
        if name in DROPOUT and _would_draw(args, arguments):
            if self._remove_dropout:
                self._note_removed()
                return args[0] if args else arguments["input"]
            return self._draw(func, name, args, arguments)
        if name == ATTENTION:
            return self._run_attention(func, args, arguments)
        if getattr(func, "__qualname__", "") == "Tensor.backward" and type(args[0]) is torch.Tensor:
            # torch leaves a mode for the time of the function that it is told of. What a checkpoint computes again in there has
            # to draw as its forward did, so the mode goes on inside.
            with self:
                return _go_backward(*args, **arguments)
        return func(*args, **arguments)

    def _draw(self, func: Callable[..., Any], name: str, args: Sequence[Any], arguments: Dict[str, Any]) -> Any:
        device = _device_of_result(name, args, arguments)
        if device.type in ("cpu", "meta"):
            return func(*args, **arguments)
        self._report(name, device, moved=self._move)
        return self._draw_on_cpu(func, name, args, arguments, device) if self._move else func(*args, **arguments)

    def _draw_on_cpu(
        self, func: Callable[..., Any], name: str, args: Sequence[Any], arguments: Dict[str, Any], device: torch.device
    ) -> Any:
        """Run the function on CPU copies of its arguments; if it wrote into the first one, copy that back."""
        if name in _FACTORIES or "device" in arguments:
            arguments["device"] = torch.device("cpu")
        first = args[0] if args else arguments.get("tensor", arguments.get("input"))
        copies: Dict[int, torch.Tensor] = {}
        result = func(
            *[self._to_cpu(value, copies) for value in args], **{k: self._to_cpu(v, copies) for k, v in arguments.items()}
        )
        # An in-place draw such as x.normal_() has filled the copy of x and must return x itself.
        if isinstance(first, torch.Tensor) and result is copies.get(id(first)):
            with torch.no_grad():
                return first.copy_(copies[id(first)])
        return result.to(device)

    def _to_cpu(self, value: Any, copies: Dict[int, torch.Tensor]) -> Any:
        if isinstance(value, torch.Tensor):
            copies[id(value)] = value.cpu()
            return copies[id(value)]
        if not isinstance(value, torch.Generator) or value.device.type == "cpu":
            return value
        # A generator of the device is replaced by one of the CPU with the same seed, and by the same one at every draw: a new
        # one would give the same numbers again each time.
        if id(value) not in self._twins:
            self._twins[id(value)] = (value, torch.Generator().manual_seed(value.initial_seed()))
        return self._twins[id(value)][1]

    def _run_attention(self, func: Callable[..., Any], args: Sequence[Any], arguments: Dict[str, Any]) -> Any:
        """Run attention, without its dropout if dropout is to be removed."""
        given = {**dict(zip(("dropout_p", "is_causal"), args[_DROPOUT_OF_ATTENTION:])), **arguments}
        if given.get("dropout_p", 0.0):
            if self._remove_dropout:
                self._note_removed()
                return func(*args[:_DROPOUT_OF_ATTENTION], **{**given, "dropout_p": 0.0})
            self._report(ATTENTION, (args[0] if args else arguments["query"]).device, moved=False)
        return func(*args, **arguments)

    def _report(self, name: str, device: torch.device, *, moved: bool) -> None:
        if device.type != "cpu":
            path, line, function = find_running_place()
            draw = Draw(name, "%s:%d in %s" % (os.path.basename(path), line, function), device.type, moved)
            self._draws.setdefault(draw)
            self.places.setdefault((path, line), name)

    def _note_removed(self) -> None:
        site = find_running_line()
        if site not in self.removed:
            self.removed.append(site)


def _go_backward(
    tensor: torch.Tensor,
    gradient: Optional[torch.Tensor] = None,
    retain_graph: Optional[bool] = None,  # noqa: FBT001  the arguments of ``Tensor.backward``
    create_graph: bool = False,  # noqa: FBT001, FBT002  the same
    inputs: Any = None,
) -> None:
    """Do what ``Tensor.backward`` does, by the engine itself: its public functions would leave every mode."""
    if gradient is None and tensor.numel() != 1:
        raise RuntimeError("grad can be implicitly created only for scalar outputs")
    seed = torch.ones_like(tensor) if gradient is None else gradient
    given = () if inputs is None else (inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs)
    retains = create_graph if retain_graph is None else retain_graph
    engine: Any = torch.autograd.Variable._execution_engine  # noqa: SLF001
    engine.run_backward((tensor,), (seed,), retains, create_graph, given, allow_unreachable=True, accumulate_grad=True)


def _would_draw(args: Sequence[Any], arguments: Mapping[str, Any]) -> bool:
    """Tell whether a call of functional dropout would draw: ``(input, p, training)``."""
    probability = args[1] if len(args) > 1 else arguments.get("p", 0.5)
    training = args[2] if len(args) > 2 else arguments.get("training", arguments.get("train", True))
    return bool(training) and probability > 0


def _device_of_result(name: str, args: Sequence[Any], arguments: Mapping[str, Any]) -> torch.device:
    """Return the device of the result: that of the argument ``device``, of a tensor argument, or the default one."""
    if arguments.get("device") is not None:
        return torch.device(arguments["device"])
    tensors = [value for value in (*args, *arguments.values()) if isinstance(value, torch.Tensor)]
    if tensors:
        return tensors[0].device
    generator = arguments.get("generator")
    if name in _FACTORIES and not isinstance(generator, torch.Generator):
        return torch.empty(0).device
    return torch.device("cpu") if generator is None else torch.device(generator.device)
