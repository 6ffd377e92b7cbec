"""Names the calls of a model as dumps do, and lets faults replace what a call computes.

This is the bench's own bookkeeping, written after ``docs/record-identity.md``: nothing of precflow's capture is used, so that
the truth about a fault does not come from the tool that is tested.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

_OUTSIDE = "(outside)"
_REFLECTED = frozenset("__radd__ __rsub__ __rmul__ __rtruediv__ __rpow__ __rmatmul__ __rdiv__".split())
_TORCH_NAMES = {"truediv": "div", "neg": "neg", "invert": "bitwise_not", "and": "bitwise_and", "or": "bitwise_or"}


class CallName(NamedTuple):
    """Where a call stands: ``module~call/operator.ordinal`` of a dump.

    Attributes:
        module: Qualified name of the innermost running module; ``(outside)`` if none runs, ``""`` for the model itself.
        call: How often this module was called before.
        operator: Canonical name of the outermost torch function.
        ordinal: How often this operator ran before in this call of the module.
    """

    module: str
    call: int
    operator: str
    ordinal: int


@dataclass(frozen=True)
class Call:
    """A call that is about to run: the function and its arguments."""

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def run(self, *args: Any, **changed: Any) -> Any:
        """Run the function, with other leading positional arguments or other keyword arguments where they are given."""
        return self.func(*args, *self.args[len(args) :], **{**self.kwargs, **changed})

    def given(self, position: int, name: str, default: Any = None) -> Any:
        """Return an argument that may stand at a position or under a name."""
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)

    def replaced(self, position: int, name: str, value: Any) -> Call:
        """Return the call with another value of one argument."""
        if len(self.args) > position:
            return Call(self.func, (*self.args[:position], value, *self.args[position + 1 :]), self.kwargs)
        return Call(self.func, self.args, {**self.kwargs, name: value})


Replacement = Callable[[CallName, Call], Any]


class Calls(TorchFunctionMode):
    """Counts the calls of a model while it runs, and hands those that ``replace`` names to it.

    Args:
        model: The model that runs.
        replace: What runs in place of a call.
        watch: Is shown every call before it runs, with the module that runs it.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        replace: Mapping[CallName, Replacement] | None = None,
        watch: Callable[[CallName, Call, torch.nn.Module | None], None] | None = None,
    ) -> None:
        super().__init__()
        self._replace = replace or {}
        self._watch = watch
        self._model = model
        self._running: list[tuple[str, int, torch.nn.Module]] = []
        self._times: Counter[str] = Counter()
        self._ordinals: Counter[tuple[str, int, str]] = Counter()
        self._hooks: list[Any] = []

    def __enter__(self) -> Calls:  # noqa: PYI034  Self came with Python 3.11
        for name, module in self._model.named_modules():
            self._hooks.append(module.register_forward_pre_hook(self._entering(name), prepend=True))
            self._hooks.append(module.register_forward_hook(self._leave, always_call=True))
        super().__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        for hook in self._hooks:
            hook.remove()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count the call and run it, or what stands in its place."""
        call = Call(func, args, kwargs or {})
        operator = canonical(func)
        if not operator:
            return call.run()
        module, times, owner = self._running[-1] if self._running else (_OUTSIDE, 0, None)
        ordinal = self._ordinals[module, times, operator]
        self._ordinals[module, times, operator] += 1
        name = CallName(module, times, operator, ordinal)
        if self._watch:
            self._watch(name, call, owner)
        replacement = self._replace.get(name)
        return replacement(name, call) if replacement else call.run()

    def _entering(self, name: str) -> Callable[..., None]:
        def enter(module: torch.nn.Module, _: Any) -> None:
            self._running.append((name, self._times[name], module))
            self._times[name] += 1

        return enter

    def _leave(self, *_: Any) -> None:
        self._running.pop()


def canonical(func: Any) -> str:
    """Return the name that dumps give a torch function, ``""`` for getters of attributes."""
    name = getattr(func, "__name__", "")
    return "" if name in {"__get__", "__set__"} else canonical_name(name)


def canonical_name(name: str) -> str:
    """Return the name that dumps give a function of this name, such as ``add`` for ``__radd__``."""
    if name in _REFLECTED:
        name = "__" + name[3:]
    in_place = name.startswith("__i") and name.endswith("__") and name != "__invert__"
    bare = name[3:-2] if in_place else name.strip("_") + ("_" if name.endswith("_") and not name.endswith("__") else "")
    return _TORCH_NAMES.get(bare, bare) + ("_" if in_place else "")
