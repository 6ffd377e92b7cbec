"""Content ids of the tensors of a run: each is hashed once, as long as nobody writes to its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, Optional, Tuple

from precflow.agent.capture.memory import Layout, storage_of, version_of
from precflow.agent.capture.memory import layout_of as layout
from precflow.agent.digest import content_id, readable, to_host

if TYPE_CHECKING:
    import torch
    from torch.multiprocessing.reductions import StorageWeakRef

    from precflow.agent.writer import Writer

_Known = Dict[Tuple[int, Layout], str]


class Contents:
    """Content ids, remembered by storage, layout and version.

    Args:
        writer: Where tensors are stored; ``None`` stores nothing.
    """

    def __init__(self, writer: Optional[Writer]) -> None:
        self._writer = writer
        self._known: Dict[int, Tuple[StorageWeakRef, _Known]] = {}

    def forget(self) -> None:
        """Forget everything: what has been stored stays stored."""
        self._known.clear()

    def written(self, tensor: torch.Tensor) -> None:
        """Forget what is known of the tensor's memory: a write was seen, through this tensor or a view of it."""
        storage = storage_of(tensor)
        if storage is not None:
            self._known.pop(storage.cdata, None)

    def of(self, tensor: torch.Tensor, *, store: bool) -> Tuple[str, bool]:
        """Return the content id and whether the dump holds the tensor; ``("", False)`` where it has no plain bytes.

        Raises:
            WriteError: The tensor could not be stored.
        """
        if not readable(tensor):
            return "", False
        content = self._remembered(tensor)
        if not content:
            content = content_id(tensor)
            self._remember(tensor, content)
        if self._writer is None or not store:
            return content, False
        if self._writer.stored(content):
            return content, True
        return content, self._writer.tensor(content, to_host(tensor))

    def _remembered(self, tensor: torch.Tensor) -> str:
        version, storage = version_of(tensor), storage_of(tensor)
        if version is None or storage is None or storage.cdata not in self._known:
            return ""
        return self._known[storage.cdata][1].get((version, layout(tensor)), "")

    def _remember(self, tensor: torch.Tensor, content: str) -> None:
        version, storage = version_of(tensor), storage_of(tensor)
        if version is None or storage is None:  # nothing tells when an inference tensor is written to
            return
        _, known = self._known.setdefault(storage.cdata, (storage, {}))
        known[(version, layout(tensor))] = content
