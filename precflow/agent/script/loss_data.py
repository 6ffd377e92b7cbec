"""``data: recorded`` where the script computes its loss: what it compares the model's output with is exchanged too.

A function mode sees every torch function that the script calls outside of its models. Tensors that a model has made, and what
was computed from them, are known; whatever else enters a function beside them, such as labels or a mask, is data::

    scores = model(tokens)                        # made by the model
    cross_entropy(scores.view(-1, 16), labels)    # labels are data: kept on the reference, replaced on the target

A number that enters so is only compared, because nobody knows whether it is data or the model's own.
"""

from __future__ import annotations

import os
import sys
import weakref
from types import FrameType
from typing import Any, Callable, ContextManager, Dict, Mapping, Optional, Sequence

import torch
from torch.overrides import TorchFunctionMode

from precflow.agent.capture.nesting import leaves
from precflow.agent.capture.operator_names import operator_name
from precflow.agent.capture.torch_functions import leave_mode
from precflow.agent.capture.wrappers import is_compiling
from precflow.agent.script.batches import Batches, place_like, read_tensors, write_tensors
from precflow.agent.session.workload_model import map_tensors

_NUMBERS = "numbers"  # of a call, beside its tensors
_NEVER = frozenset(("backward", "register_hook", "retain_grad", "requires_grad_"))


class LossData(TorchFunctionMode):
    """Keeps or replaces the data that a script computes its losses with.

    Args:
        batches: Where they lie, and what fails if that cannot be done.
        quiet: Held while values are read, so that this is not recorded.
        is_outside: Tells whether the script itself runs, and no model and no optimizer.
    """

    def __init__(self, batches: Batches, quiet: ContextManager[Any], is_outside: Callable[[], bool]) -> None:
        super().__init__()
        self._batches, self._quiet, self._is_outside = batches, quiet, is_outside
        self._made: Dict[int, Any] = {}  # id -> weak reference to what a model has made, or what was computed from that
        self._step = -1
        self._call = 0
        self._kept: Dict[str, torch.Tensor] = {}  # of the step that runs
        self._recorded: Optional[Dict[str, torch.Tensor]] = None

    def begin_step(self, number: int) -> None:
        """Begin a step: write what was kept of the one before."""
        self.finish_step()
        self._step, self._call, self._recorded = number, 0, None

    def finish_step(self) -> None:
        """Write what was kept of the step that runs."""
        if self._kept:
            write_tensors(self._find_file(), self._kept)
        self._kept = {}

    def note_output(self, output: Any) -> None:
        """Note what a model has returned."""
        for _, leaf in leaves(output, ""):
            if isinstance(leaf, torch.Tensor):
                self._note(leaf)
                self._batches.note_made(leaf)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Optional[Mapping[str, Any]] = None
    ) -> Any:
        """Run one torch function, with recorded data where it computes with what a model has made."""
        named = dict(kwargs or {})
        if is_compiling() or not self._is_outside():
            return func(*args, **named)
        name = operator_name(func)
        given: Dict[Any, Any] = {**dict(enumerate(args)), **named}
        entries = [(path, leaf) for path, leaf in leaves(given)]
        if not name or name in _NEVER or not any(self._is_made(leaf) for _, leaf in entries):
            return func(*args, **named)
        fresh: Dict[int, torch.Tensor] = {}
        if not _is_scaler(sys._getframe(1)):  # noqa: SLF001  who calls the function; it costs nothing
            with self._quiet:
                fresh = self._exchange(name, dict(entries))
        if fresh:
            given = {key: map_tensors(value, lambda tensor: fresh.get(id(tensor), tensor)) for key, value in given.items()}
        result = func(*[given[place] for place in range(len(args))], **{key: given[key] for key in named})
        for _, leaf in leaves(result, ""):
            if isinstance(leaf, torch.Tensor):
                self._note(leaf)
        return result

    def start(self) -> None:
        """Begin to listen."""
        self.__enter__()  # type: ignore[no-untyped-call]  # torch has not annotated it

    def stop(self) -> None:
        """Stop listening."""
        leave_mode(self)

    def _exchange(self, name: str, entries: Mapping[str, Any]) -> Dict[int, torch.Tensor]:
        """Keep the data of a call, or return id of a tensor -> what takes its place."""
        tensors = {path: leaf for path, leaf in entries.items() if isinstance(leaf, torch.Tensor)}
        data = {path: leaf for path, leaf in tensors.items() if not (self._is_made(leaf) or leaf.requires_grad)}
        numbers = [float(leaf) for leaf in entries.values() if type(leaf) in (int, float)]
        if not data and not numbers:
            return {}
        head = "%d.%s." % (self._call, name)
        self._call += 1
        if not self._batches.feeds:
            self._kept.update({head + path: tensor.detach().cpu().clone() for path, tensor in data.items()})
            if numbers:
                self._kept[head + _NUMBERS] = torch.tensor(numbers, dtype=torch.float64)
            return {}
        place = "%s, number %d of those that compute the loss of step %d," % (name, self._call - 1, self._step)
        recorded = self._read()
        wanted = {head + path for path in data} | ({head + _NUMBERS} if numbers else set())
        if wanted != {key for key in recorded if key.startswith(head)}:
            raise self._batches.fail("%s is not given what it was given on the reference" % place)
        if numbers and recorded[head + _NUMBERS].tolist() != numbers:
            texts = [", ".join("%g" % each for each in values) for values in (recorded[head + _NUMBERS].tolist(), numbers)]
            raise self._batches.fail("%s is given other numbers than on the reference (%s and %s)" % (place, *texts))
        fresh: Dict[int, torch.Tensor] = {}
        for path, tensor in data.items():
            value = place_like(recorded[head + path], tensor)
            if value.shape != tensor.shape or not torch.equal(value, tensor):
                self._batches.other_data += 1
                if name.endswith("_") and path == "0":  # what is written to has to stay the same tensor
                    tensor.copy_(value)
                else:
                    fresh[id(tensor)] = value
        return fresh

    def _read(self) -> Dict[str, torch.Tensor]:
        if self._recorded is None:
            path = self._find_file()
            self._recorded = read_tensors(path) if os.path.exists(path) else {}
        return self._recorded

    def _find_file(self) -> str:
        return os.path.join(self._batches.folder, "step%d.loss.safetensors" % self._step)

    def _note(self, tensor: torch.Tensor) -> None:
        number, made = id(tensor), self._made
        made[number] = weakref.ref(tensor, lambda _: made.pop(number, None))

    def _is_made(self, value: Any) -> bool:
        reference = self._made.get(id(value))
        return reference is not None and reference() is value


def _is_scaler(frame: FrameType) -> bool:
    """Tell whether a gradient scaler calls: its scale is a state of its own and no data."""
    return str(frame.f_globals.get("__name__", "")).startswith(("torch.amp.", "torch.cuda.amp.", "torch_npu."))
