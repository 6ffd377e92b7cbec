"""Runs one side of a case and leaves its dump; on the target also the size of each fault, as the bench measures it."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import precflow
from precflow.agent.contract import NOISES
from precflow.agent.session.choices import Choices
from precflow.agent.session.disturbance import Directions, Disturbance
from precflow.agent.session.noise import disturb

from . import effect, hosts
from .calls import Call, CallName, Calls, Replacement
from .cases import DTYPES, Case, Fault
from .chips import ALTERNATIVES, Chip
from .effect import Effect
from .faults import KINDS, Kind

_OPTIONS = {"lr": 1e-3, "eps": 1e-8, "weight_decay": 0.01}
_BACKWARD = ("forward", "backward", "gradient")


@dataclass
class Ran:
    """What running a target leaves besides its dump.

    Attributes:
        effects: Sizes of each fault, at each of its calls, in the order of the case's faults.
    """

    effects: list[dict[CallName, Effect]] = field(default_factory=list)


def run_reference(case: Case, folder: Path) -> None:
    """Record the reference of a case unless a case before had the same one."""
    if (folder / "dump.json").exists():
        return
    model, inputs = _prepare(case, case.reference)
    optimizer = _optimizer(model, _OPTIONS, wanted=_steps(case))
    with _recording(case, model, folder, optimizer):
        _step(case, model, inputs, optimizer)


def run_disturbed(case: Case, folder: Path) -> None:
    """Record the reference of a case with each disturbance of the product's stage ``noise``, in a folder of its name.

    What disturbs is the product's; only the loop around it is the bench's own.
    """
    choices = Choices()
    model, inputs = _prepare(case, case.reference)
    with Disturbance(lambda: False, choices):
        _step(case, model, inputs, _optimizer(model, _OPTIONS, wanted=_steps(case)))
    for name in NOISES:
        model, inputs = _prepare(case, case.reference)
        if name == "weights":
            directions = Directions()
            for weight in model.parameters():
                directions.move(weight.data)
        optimizer = _optimizer(model, _OPTIONS, wanted=_steps(case))
        recording = _recording(case, model, folder / name, optimizer)
        choices.follow()
        with disturb(name, functools.partial(_is_quiet, recording), choices), recording:
            _step(case, model, inputs, optimizer)


def _is_quiet(recording: Any) -> bool:
    """Tell whether capture works at the moment, as it also does before its block begins."""
    recorder = getattr(recording, "_recorder", None)
    return recorder is None or recorder.without_recording().is_held


def reference_name(case: Case) -> str:
    """Return a name that all cases with the same reference share."""
    variant = "_".join(f"{part}-{value}" for part, value in sorted(case.reference.items()))
    return "-".join(filter(None, [case.host, case.dtype, "backward" * case.backward, "step" * _steps(case), variant]))


def run_target(case: Case, folder: Path) -> Ran:
    """Record the target of a case."""
    shutil.rmtree(folder, ignore_errors=True)
    model, inputs = _prepare(case, case.target)
    ran = Ran()
    chip = Chip(case.chip, case.seed)
    replace: dict[CallName, Replacement] = {}
    options = dict(_OPTIONS)
    for fault in case.faults:
        found: dict[CallName, Effect] = {}
        ran.effects.append(found)
        if KINDS[fault.kind].of == "optimizer":
            options = KINDS[fault.kind].change(options, fault.size)
        else:
            replace.update(_install(fault, model, inputs, chip, found))
    torch.manual_seed(case.seed)  # of faults that draw, such as a dropout
    with chip, Calls(model, replace):
        optimizer = _optimizer(model, options, wanted=_steps(case))
        with _recording(case, model, folder, optimizer):
            _step(case, model, inputs, optimizer)
    if options != _OPTIONS:
        ran.effects[0].update(_effect_of_options(case, options))
    return ran


def _prepare(case: Case, variant: dict[str, str]) -> tuple[torch.nn.Module, dict[str, Any]]:
    torch.set_num_threads(1)
    host = hosts.HOSTS[case.host]
    return host.make(DTYPES[case.dtype], variant), host.inputs(DTYPES[case.dtype])


def _steps(case: Case) -> bool:
    """Return whether an optimizer runs."""
    return any(KINDS[fault.kind].of == "optimizer" for fault in case.faults)


def _optimizer(model: torch.nn.Module, options: dict[str, Any], *, wanted: bool) -> torch.optim.Optimizer | None:
    return torch.optim.AdamW(model.parameters(), foreach=False, **options) if wanted else None


def _recording(case: Case, model: torch.nn.Module, folder: Path, optimizer: torch.optim.Optimizer | None) -> Any:
    phase = None if optimizer else _BACKWARD if case.backward else ("forward",)
    return precflow.capture(model, folder, optimizer=optimizer, phase=phase, overwrite=True)


def _step(case: Case, model: torch.nn.Module, inputs: dict[str, Any], optimizer: torch.optim.Optimizer | None) -> None:
    hosts.HOSTS[case.host].run(model, inputs, backward=case.backward)
    if optimizer:
        optimizer.step()


def _install(
    fault: Fault, model: torch.nn.Module, inputs: dict[str, Any], chip: Chip, found: dict[CallName, Effect]
) -> dict[CallName, Replacement]:
    """Put a fault into weights or inputs at once, or return what is to run in place of its calls."""
    kind = KINDS[fault.kind]
    if kind.of == "inputs":
        kind.change(inputs, fault.size)
        return {}
    if kind.of == "weights":
        return _install_in_weights(fault, model, chip, found)
    if kind.of == "forward":
        return dict.fromkeys(fault.calls, _make_forward(kind.change, fault.size, chip, found))
    return dict.fromkeys(fault.calls, _make_backward(kind, fault.size, chip, found))


def _install_in_weights(
    fault: Fault, model: torch.nn.Module, chip: Chip, found: dict[CallName, Effect]
) -> dict[CallName, Replacement]:
    """Change weights, and measure at the one operator that uses them where there is one."""
    kind = KINDS[fault.kind]
    if not fault.calls:
        kind.change(model, fault.size)
        return {}
    weight = model.get_parameter(f"{fault.calls[0].module}.weight".lstrip("."))
    right = weight.detach().clone()
    kind.change(weight, fault.size)

    def compare(name: CallName, call: Call) -> Any:
        made = call.run()
        with chip.unseen(), chip.paused():
            found[name] = effect.measure(call.replaced(1, "weight", right), made)
        return made

    return dict.fromkeys(fault.calls, compare)


def _make_forward(change: Callable[..., Any], size: float, chip: Chip, found: dict[CallName, Effect]) -> Replacement:
    def replacement(name: CallName, call: Call) -> Any:
        with chip.unseen():
            made = change(call, size)
            with chip.paused():
                found[name] = effect.measure(call, made)
        return made

    return replacement


def _make_backward(kind: Kind, size: float, chip: Chip, found: dict[CallName, Effect]) -> Replacement:
    """Change the gradients of a call by hooks, so that the graph of the target is that of the reference."""

    def replacement(name: CallName, call: Call) -> Any:
        made = call.run()
        places = [place for place, value in enumerate(call.args) if _needs_gradient(value)]
        named = [key for key, value in call.kwargs.items() if _needs_gradient(value)]
        work = _Work(name, call, places, named, kind, size, chip, found)
        tensors = [*(call.args[place] for place in places), *(call.kwargs[key] for key in named)]
        for position, tensor in enumerate(tensors):
            if _is_of_a_leaf(tensor):
                tensor.register_hook(functools.partial(work.changed, position, len(tensors)))
        made.register_hook(work.arrive)
        node = _computing_node(made.grad_fn)
        towards = [bool(after) and not any(word in after.name() for word in _OF_WEIGHTS) for after, _ in node.next_functions]
        node.register_hook(functools.partial(work.change_leaving, len(tensors), towards))
        return made

    return replacement


def _needs_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _is_of_a_leaf(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a parameter or a slice of one, such as the weight of one expert of several."""
    return tensor.is_leaf or (tensor._base is not None and tensor._base.is_leaf)  # noqa: SLF001  there is no public way


def _computing_node(node: Any) -> Any:
    """Return the node that computes, behind those that only give its result another shape."""
    while any(word in node.name() for word in _VIEWS):
        node = node.next_functions[0][0]
    return node


_VIEWS = ("View", "Reshape", "Alias")
_OF_WEIGHTS = ("AccumulateGrad", "TBackward")  # a weight's own gradient is changed at the weight


@dataclass
class _Work:
    """What the backward of a call needs: the call, which of its arguments have gradients, and how these are changed."""

    name: CallName
    call: Call
    places: list[int]
    named: list[str]
    kind: Kind
    size: float
    chip: Chip
    found: dict[CallName, Effect]
    rounded: list[torch.Tensor | None] = field(default_factory=list)  # gradients that are computed from changed operands

    def changed(self, position: int, count: int, gradient: torch.Tensor) -> torch.Tensor:
        """Return the wrong gradient of the argument at this position, of so many that have one."""
        gradients: list[torch.Tensor | None] = [None] * count
        gradients[position] = gradient
        with self.chip.unseen(), torch._C.DisableTorchFunction():  # noqa: SLF001  what runs here is no call of the model
            return self._make_wrong(gradients)[position]

    def _make_wrong(self, gradients: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
        if self.kind.of == "operands":
            pairs = zip(gradients, self.rounded, strict=True)
            return [None if one is None or wrong is None else wrong.reshape(one.shape) for one, wrong in pairs]
        return list(self.kind.change(gradients, self.size))

    def change_leaving(self, count: int, towards: list[bool], leaving: tuple[Any, ...], _: Any) -> tuple[Any, ...]:
        """Return the wrong gradients that leave a node, where they go to other operators."""
        return tuple(
            self.changed(self._place_of(gradient), count, gradient) if gradient is not None and wrong else gradient
            for gradient, wrong in zip(leaving, towards, strict=True)
        )

    def _place_of(self, gradient: torch.Tensor) -> int:
        """Return which argument a gradient that leaves a node is of: the one whose own is nearest, in another shape maybe."""
        if self.kind.of != "operands":
            return 0
        distances = [
            float((one.reshape(gradient.shape) - gradient).norm())
            if one is not None and one.numel() == gradient.numel()
            else float("inf")
            for one in self.rounded
        ]
        return distances.index(min(distances))

    def arrive(self, arriving: torch.Tensor) -> None:
        """Measure the largest effect among the gradients, against float64 at the same gradient of the output."""
        with self.chip.unseen(), self.chip.paused(), torch._C.DisableTorchFunction():  # noqa: SLF001  the same
            exact, plain = self._gradients(torch.float64, arriving), self._gradients(None, arriving)
            with Chip(ALTERNATIVES):
                others = self._gradients(None, arriving)
            if self.kind.of == "operands":
                self.rounded = self._gradients_of_operands(arriving)
            wrong = self._make_wrong(list(plain))
            matmul = self.name.operator in effect.MATMULS
            # A gradient that adds up is measured by what it adds up, as a product of the forward is.
            scales = self._gradients(torch.float64, arriving.abs(), effect.of_magnitudes(self.call)) if matmul else exact
            effects = [
                effect.compare(one, two, three, scale, other=other, matmul=matmul)
                for one, two, three, other, scale in zip(exact, plain, wrong, others, scales, strict=True)
                if one is not None and two is not None and three is not None and other is not None
            ]
        self.found[self.name] = max(effects, key=lambda one: one.rho)

    def _gradients_of_operands(self, arriving: torch.Tensor) -> list[torch.Tensor | None]:
        """Return the gradients of the call with what its backward multiplies changed."""

        def change(tensor: torch.Tensor) -> torch.Tensor:
            changed: torch.Tensor = self.kind.change(tensor.detach(), self.size)
            return changed

        changed = effect.map_floats(self.call, change)
        both = zip(self._gradients(None, arriving), self._gradients(None, change(arriving), changed), strict=True)
        # The gradient of a bias is a sum, which multiplies nothing.
        return [plain if plain is None or plain.dim() == 1 else rounded for plain, rounded in both]

    def _gradients(
        self, dtype: torch.dtype | None, arriving: torch.Tensor, call: Call | None = None
    ) -> list[torch.Tensor | None]:
        """Return the gradients of the call or of another one, by its own operators or by those in another element type."""
        call = call or self.call
        call = call if dtype is None else effect.map_floats(call, lambda tensor: tensor.detach().to(dtype))
        args, kwargs = list(call.args), dict(call.kwargs)
        leaves = []
        for holder, keys in ((args, self.places), (kwargs, self.named)):
            for key in keys:
                holder[key] = holder[key].detach().requires_grad_()
                leaves.append(holder[key])
        with torch.enable_grad():
            made = Call(call.func, tuple(args), kwargs).run()
        return list(torch.autograd.grad(made, leaves, arriving.detach().to(made.dtype), allow_unused=True))


def _effect_of_options(case: Case, options: dict[str, Any]) -> dict[CallName, Effect]:
    """Measure another setting of the optimizer at one step of one weight, in float64 and in the case's type."""
    draw = torch.Generator().manual_seed(case.seed)
    weight, gradient = (torch.randn(64, generator=draw, dtype=torch.float64) * scale for scale in (1.0, 1e-3))

    def stepped(dtype: torch.dtype, chosen: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        parameter = torch.nn.Parameter(weight.to(DTYPES[case.dtype]).to(dtype))
        parameter.grad = gradient.to(DTYPES[case.dtype]).to(dtype)
        optimizer = torch.optim.AdamW([parameter], foreach=False, **chosen)
        optimizer.step()
        return parameter.detach(), optimizer.state[parameter]["exp_avg_sq"]

    dtype = DTYPES[case.dtype]
    parts = zip(stepped(torch.float64, _OPTIONS), stepped(dtype, _OPTIONS), stepped(dtype, options), strict=True)
    # Where squares of float16 vanish, the healthy step divides by zero too.
    finite = [[one[torch.isfinite(plain)] for one in (exact, plain, wrong)] for exact, plain, wrong in parts]
    effects = [effect.compare(exact, plain, wrong, exact, other=plain, matmul=False) for exact, plain, wrong in finite]
    largest = Effect(max(one.rho for one in effects), max(one.residue for one in effects), matmul=False)
    return {CallName("(optimizer)", 0, "step", 0): largest}
