"""A thread that stores tensors while the model goes on: a bounded queue, and the errors of the thread at the next call."""

from __future__ import annotations

import threading
import zlib
from collections import deque
from typing import Callable, Deque, Iterator, Optional

import torch

from precflow.agent.contract import COMPRESSED, COMPRESSED_BLOCK
from precflow.agent.dump.shard import ALIGNMENT, Entry
from precflow.agent.measure.transfer import byte_pieces

QUEUE_BYTES = 256 << 20  # tensors that wait at most; who brings more waits until there is room
QUEUE_ITEMS = 4096


class Background:
    """Hands entries to ``store`` in their order, in a thread of its own.

    Args:
        store: What is called with each entry; after its first exception nothing more is stored.
        most_bytes: Bytes of entries that may wait or be under way; a larger entry waits until it is alone.
        most_items: Entries that may wait.

    Attributes:
        peak_bytes: Most bytes that were waiting or under way at any time.
    """

    def __init__(self, store: Callable[[Entry], None], most_bytes: int = QUEUE_BYTES, most_items: int = QUEUE_ITEMS) -> None:
        self.peak_bytes = 0
        self._store = store
        self._most_bytes = most_bytes
        self._most_items = most_items
        self._waiting: Deque[Entry] = deque()
        self._bytes = 0  # waiting or under way
        self._busy = False
        self._closed = False
        self._problem: Optional[BaseException] = None
        self._changed = threading.Condition()
        self._thread: Optional[threading.Thread] = None

    def put(self, entry: Entry) -> None:
        """Queue an entry whose bytes stay as they are; wait while the queue is full.

        Raises:
            BaseException: What storing an earlier entry raised.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._problem is not None or self._room(entry.size))
            self._tell()
            self._waiting.append(entry)
            self._bytes += entry.size
            self.peak_bytes = max(self.peak_bytes, self._bytes)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="precflow-writer", daemon=True)
                self._thread.start()

    def drain(self) -> None:
        """Wait until everything is stored.

        Raises:
            BaseException: What storing an entry raised; those behind it are not stored.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting and not self._busy)
            self._tell()

    def close(self) -> None:
        """Store what waits and end the thread; this never raises, the error of the thread has been told or is not wanted."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _room(self, size: int) -> bool:
        return not self._bytes or (self._bytes + size <= self._most_bytes and len(self._waiting) < self._most_items)

    def _tell(self) -> None:
        if self._problem is not None:
            raise self._problem

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                entry = self._waiting.popleft()
                self._busy = True
            try:
                if self._problem is None:
                    self._store(entry)
            except BaseException as problem:  # noqa: BLE001  it is raised again by who comes next
                self._problem = problem
            size, entry = entry.size, None  # type: ignore[assignment]  # let its memory go before there is room for more
            with self._changed:
                self._bytes -= size
                self._busy = False
                self._changed.notify_all()


# Compressing a tensor before it is stored, where that makes it smaller: bytes of equal weight side by side, then zlib.
#
# ``capture.compress`` asks for it. Rounding noise does not compress; what does are zeros (after a ReLU, in masks), repeated
# rows and integers.

_LEVEL = 1
_LEAST = 4096  # bytes; a smaller tensor is not worth the time
_PAYS = 0.8  # share of the bytes that may be left


def compressed(entry: Entry) -> Entry:
    """Return an entry with the same tensor in fewer bytes, or the entry itself where it would take more than 0.8 of them.

    Whether it would is tried on the first MiB. What comes out is in memory as a whole.
    """
    if entry.size < _LEAST:
        return entry
    if not _pays(entry):
        return entry
    packer = zlib.compressobj(_LEVEL)
    made = bytearray()
    for block in _blocks(entry):
        made += packer.compress(block)
    made += packer.flush()
    made += bytes(-len(made) % ALIGNMENT)
    return Entry(entry.key + COMPRESSED, torch.frombuffer(made, dtype=torch.uint8), private=True)


def _pays(entry: Entry) -> bool:
    blocks = _blocks(entry)  # kept: its end would take the memory of the block along
    first = next(blocks)
    return len(zlib.compress(first, _LEVEL)) <= _PAYS * len(first)


def _blocks(entry: Entry) -> Iterator[memoryview]:
    """Yield the bytes in blocks, in each of which the first bytes of all elements come first, then the second ones."""
    host = entry.host.contiguous().reshape(-1)
    flat = (torch.view_as_real(host).reshape(-1) if host.is_complex() else host).view(torch.uint8)
    for block in flat.split(COMPRESSED_BLOCK):
        for piece in byte_pieces(block.view(-1, entry.width).t().contiguous()):
            yield piece
