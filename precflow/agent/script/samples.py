"""Which samples a script's data loaders read, in order: the indices that their samplers give.

A batch says what was read only after transforms, and augmentation or another decoder changes it. Indices say whether the
sides read the same samples at all. torch has no hook for them, so while the script runs, the method by which an iterator of
a loader asks its sampler is wrapped: it gives back what the sampler gave. Iterable datasets have no indices.
"""

from __future__ import annotations

import hashlib
import json
import weakref
from types import TracebackType
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Type

from torch.utils.data import dataloader

MOST_BATCHES = 64  # of each loader
_MOST_LOADERS, _SHOWN = 16, 12
_METHOD = "_next_index"


class Samples:
    """Notes the indices of the first batches of each data loader.

    Attributes:
        order: Dataset -> batch, counted from the beginning of the script -> its indices as text.
    """

    def __init__(self) -> None:
        self.order: Dict[str, Dict[str, str]] = {}
        # Of each loader its sampler, which an epoch does not make anew, and its name; none is kept alive.
        self._known: List[Tuple[Callable[[], Any], str]] = []
        self._kind: Any = getattr(dataloader, "_BaseDataLoaderIter", None)
        self._original: Any = getattr(self._kind, _METHOD, None)

    def __enter__(self) -> Samples:  # noqa: PYI034  Self came with Python 3.11
        """Wrap the method; a torch without it has no indices to note."""
        original = self._original
        if original is not None:

            def next_index(iterator: Any) -> Any:
                """Return what the sampler gives next."""
                given = original(iterator)
                self._note(iterator, given)
                return given

            setattr(self._kind, _METHOD, next_index)
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        """Put the method back."""
        if self._original is not None:
            setattr(self._kind, _METHOD, self._original)

    def _note(self, iterator: Any, given: Any) -> None:
        indices = given if isinstance(given, (list, tuple)) else [given]
        if not indices or not all(isinstance(each, (int, str)) for each in indices):
            return  # an iterable dataset has no indices
        name = self._name(iterator)
        batches = self.order.setdefault(name, {}) if name else {}
        if len(batches) < MOST_BATCHES:
            batches["batch %04d" % len(batches)] = describe_indices(indices)

    def _name(self, iterator: Any) -> str:
        """Return a loader's name: its dataset's class, with a number from the second one on; ``""`` if there are too many."""
        sampler, dataset = iterator._index_sampler, type(iterator._dataset).__name__  # noqa: SLF001  torch has no public name
        for known, name in self._known:
            if known() is sampler:
                return name
        if len(self._known) == _MOST_LOADERS:
            return ""
        number = sum(name.partition("#")[0] == dataset for _, name in self._known)
        self._known.append((_refer_to(sampler), dataset + ("#%d" % (number + 1) if number else "")))
        return self._known[-1][1]


def _refer_to(sampler: Any) -> Callable[[], Any]:
    """Return a function that returns an object as long as it lives."""
    try:
        return weakref.ref(sampler)
    except TypeError:  # of a class without room for it
        return lambda: sampler


def describe_indices(indices: Sequence[Any]) -> str:
    """Return indices as text; of many the first ones and a digest of all. Names of samples are nobody's business.

    >>> describe_indices([3, 1, 2]), describe_indices(range(40))
    ('3, 1, 2', '0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 ... (40, 0aba0dfe)')
    """
    shown = ", ".join(str(each) if isinstance(each, int) else _digest(each) for each in indices[:_SHOWN])
    if len(indices) <= _SHOWN:
        return shown
    return "%s ... (%d, %s)" % (shown, len(indices), _digest(json.dumps(list(map(str, indices)))))


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
