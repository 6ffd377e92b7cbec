"""A thread that stores tensors while the model goes on: a bounded queue, and the errors of the thread at the next call."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Callable, Deque, Optional

if TYPE_CHECKING:
    from precflow.agent.dump.shard import TensorEntry

QUEUE_BYTES = 256 << 20  # of tensors that may wait; whoever brings more waits until there is room
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

    def __init__(
        self, store: Callable[[TensorEntry], None], most_bytes: int = QUEUE_BYTES, most_items: int = QUEUE_ITEMS
    ) -> None:
        self.peak_bytes = 0
        self._store = store
        self._most_bytes = most_bytes
        self._most_items = most_items
        self._waiting: Deque[TensorEntry] = deque()
        self._bytes = 0  # waiting or under way
        self._busy = False
        self._closed = False
        self._problem: Optional[BaseException] = None
        self._changed = threading.Condition()
        self._thread: Optional[threading.Thread] = None

    def put(self, entry: TensorEntry) -> None:
        """Queue an entry whose bytes stay as they are; wait while the queue is full.

        Raises:
            BaseException: What storing an earlier entry raised.
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
            BaseException: What storing an entry raised; those behind it are not stored.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting and not self._busy)
            self._raise_problem()

    def close(self) -> None:
        """Store what waits and end the thread. This never raises: by now the caller knows of an error, or gives up for one."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _has_room(self, size: int) -> bool:
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
                self._busy = True
            try:
                if self._problem is None:
                    self._store(entry)
            except BaseException as problem:  # noqa: BLE001  the next call raises it again
                self._problem = problem
            size, entry = entry.size, None  # type: ignore[assignment]  # free its memory before there is room for more
            with self._changed:
                self._bytes -= size
                self._busy = False
                self._changed.notify_all()
