"""Choices of a run (routing, sampling, comparisons), kept so that disturbed runs of the same workload choose alike.

Where two values are as near as rounding, a disturbance makes a model choose differently, and what depends on the choice then
differs by as much as the values themselves. That is no noise: it is judged as a near tie, by the noise of the values chosen
between. So a plain run is kept first, and each disturbed run is given its choices::

    plain run        scores 0.30 0.70 0.69   topk -> 1, value 0.70
    disturbed run    scores 0.30 0.69 0.70   topk -> 1, value 0.69

What is kept is what a record shows. Three choices are seen by no module and no function: which element a pooling took (its
function returns the values alone), the order inside ``quantile`` and ``msort``, which sort and return values alone, and the
masks that a backward pass makes of values of the forward, as those of ``amax``, ``clamp`` and ``maximum`` do. Nobody could
judge them as near ties. So they are noise, as the sign of an element near 0 in ``relu`` is, and each disturbed run makes its
own, unless aten operators are recorded.

Choices are found by their order. Where another operator or another shape comes, the runs have parted, and the rest of the run
chooses for itself.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch
from torch.overrides import TorchFunctionMode

from precflow.agent.capture.autograd import is_in_backward, is_recomputing
from precflow.agent.capture.torch_functions import leave_mode

# Operators that return values and where they stood -> place of their argument `dim`.
_WITH_VALUES = {"topk": 2, "kthvalue": 2, **dict.fromkeys("sort median nanmedian mode max min cummax cummin".split(), 1)}
_POOLING = "max_pool"  # in the names of operators that return indices along with the values
_INSIDE = frozenset("quantile nanquantile msort".split())  # functions that choose by other operators, and return values alone
_Kept = Tuple[str, List[torch.Tensor]]


class Choices:
    """Keeps the choices of the first run, and gives them to every run that begins with :meth:`follow`.

    Args:
        by_operator: Aten operators are recorded, those of the backward pass as well, so that every choice is seen.
    """

    def __init__(self, *, by_operator: bool = False) -> None:
        self._by_operator = by_operator
        self._kept: List[_Kept] = []
        self._coming: Optional[Iterator[_Kept]] = None
        self._is_hidden = False
        self._functions: List[TorchFunctionMode] = []

    def start(self) -> None:
        """Begin to watch for functions that return no choice of theirs."""
        mode = _Functions(self.call)
        mode.__enter__()  # type: ignore[no-untyped-call]  # torch has not annotated it
        self._functions.append(mode)

    def stop(self) -> None:
        """End what :meth:`start` began last."""
        leave_mode(self._functions.pop())

    def call(self, function: Callable[..., Any], positional: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """Run a torch function, and remember meanwhile if the choices inside it are hidden."""
        before = self._is_hidden
        self._is_hidden = before or getattr(function, "__name__", "") in _INSIDE
        try:
            return function(*positional, **keywords)
        finally:
            self._is_hidden = before

    @property
    def are_made(self) -> bool:
        """The run that was kept chose at least once."""
        return bool(self._kept)

    def follow(self) -> None:
        """Another run begins: it is given the choices that are kept."""
        self._coming = iter(self._kept)

    def settle(self, name: str, positional: Sequence[Any], keywords: Mapping[str, Any], result: Any) -> Any:
        """Keep what an operator chose, or return what it would have returned with the choice that is kept.

        A choice is a result of whole numbers or truth values that was made of floating point numbers.

        Args:
            name: Canonical name of the operator.
            positional: Its positional arguments.
            keywords: Its keyword arguments.
            result: What it returned.
        """
        results = list(result) if isinstance(result, (tuple, list)) else [result]
        tensors = [(place, each) for place, each in enumerate(results) if isinstance(each, torch.Tensor)]
        # Tensors of bytes are the workspace that some kernels leave for their backward.
        places = [place for place, each in tensors if not _is_real(each) and each.dtype != torch.uint8]
        if not places or not positional or not _is_real(positional[0]) or not self._is_seen(name):
            return result
        if self._coming is None:
            self._kept.append((name, [results[place].detach().to("cpu", copy=True) for place in places]))
            return result
        before, kept = next(self._coming, ("", []))
        if before != name or [each.shape for each in kept] != [results[place].shape for place in places]:
            self._coming = iter(())
            return result
        for place, each in zip(places, kept):
            results[place] = each.to(results[place].device)
        if name in _WITH_VALUES and len(results) == 2:
            place = _WITH_VALUES[name]
            dim = keywords.get("dim", positional[place] if len(positional) > place else -1)
            results[0] = _take(positional[0], results[1], dim)
        return type(result)(results) if isinstance(result, (tuple, list)) else results[0]

    def _is_seen(self, name: str) -> bool:
        """Tell whether a choice is in any record; what a checkpoint computes again was in one."""
        is_backward = is_in_backward() and not is_recomputing()
        return self._by_operator or not (is_backward or self._is_hidden or _POOLING in name)


class _Functions(TorchFunctionMode):
    """Hands torch functions to :meth:`Choices.call`."""

    def __init__(self, call: Callable[..., Any]) -> None:
        super().__init__()
        self._call = call

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        """Run one function on behalf of torch."""
        del types
        return self._call(func, args, kwargs or {})


def _is_real(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _take(given: torch.Tensor, indices: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the values that stand at indices along an axis, which the indices may lack because it was reduced."""
    if indices.dim() == given.dim():
        return given.gather(dim, indices) if given.dim() else given.clone()
    return given.gather(dim, indices.unsqueeze(dim)).squeeze(dim)
