"""A thread that stores tensors while the model runs on. Its queue is bounded; its errors are raised by the next call."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Callable, Deque, Optional

if TYPE_CHECKING:
    from precflow.agent.dump.shard import TensorEntry

QUEUE_BYTES = 256 << 20  # of tensors that may wait; a caller with more blocks until there is room
QUEUE_ITEMS = 4096  # with small tensors this is reached before the bytes


class Background:
    """Calls ``store`` with each entry, in the order of :meth:`put`, from a thread of its own.

    Args:
        store: Called with one entry at a time; after its first exception nothing more is stored.
        most_bytes: Bytes of entries that may be queued or being stored; a larger entry waits until it is the only one.
        most_items: Entries that may be queued.

    Attributes:
        peak_bytes: Most bytes that were queued or being stored at any time.
    """

    def __init__(
        self, store: Callable[[TensorEntry], None], most_bytes: int = QUEUE_BYTES, most_items: int = QUEUE_ITEMS
    ) -> None:
        self.peak_bytes = 0
        self._store = store
        self._most_bytes = most_bytes
        self._most_items = most_items
        self._waiting: Deque[TensorEntry] = deque()
        self._bytes = 0  # queued, or being stored right now
        self._busy = False
        self._closed = False
        self._problem: Optional[BaseException] = None
        self._changed = threading.Condition()
        self._thread: Optional[threading.Thread] = None

    def put(self, entry: TensorEntry) -> None:
        """Queue an entry whose bytes nobody changes any more; block while the queue is full.

        Raises:
            BaseException: The exception that storing an earlier entry raised.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._problem is not None or self._has_room(entry.size))
            self._raise_problem()
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
            BaseException: The exception that storing an entry raised; the entries after it were not stored.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting and not self._busy)
            self._raise_problem()

    def close(self) -> None:
        """Store the remaining entries and end the thread.

        This never raises: the caller has either seen an error of the thread already, or is giving up because of another one.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _has_room(self, size: int) -> bool:
        # An empty queue takes an entry of any size: one that is larger than most_bytes would otherwise block for ever.
        return not self._bytes or (self._bytes + size <= self._most_bytes and len(self._waiting) < self._most_items)

    def _raise_problem(self) -> None:
        if self._problem is not None:
            raise self._problem

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                entry = self._waiting.popleft()
                self._busy = True  # the queue may be empty now, but drain() must still wait for this entry
            # After an error the loop goes on emptying the queue without storing, so that put(), drain() and close() return
            # instead of waiting for room that never comes.
            try:
                if self._problem is None:
                    self._store(entry)
            except BaseException as problem:  # noqa: BLE001  the next call raises it again
                self._problem = problem
            size, entry = entry.size, None  # type: ignore[assignment]  # free its memory before announcing room for more
            with self._changed:
                self._bytes -= size
                self._busy = False
                self._changed.notify_all()
