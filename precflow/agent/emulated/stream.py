"""Streams and events of the emulated device. Every operator is done when it returns, so there is never anything to wait for."""

from __future__ import annotations

import time
from typing import Any, Optional, Type

from precflow.agent.emulated import ordinal


class Stream:
    """A queue of work that is always empty."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.device_index = ordinal.index_of(device)
        self.priority = priority

    def synchronize(self) -> None:
        """Return at once: nothing is pending."""

    def query(self) -> bool:
        """Return True: nothing is pending."""
        return True

    def wait_stream(self, stream: Any) -> None:
        """Return at once: nothing is pending."""

    def wait_event(self, event: Any) -> None:
        """Return at once: nothing is pending."""

    def record_event(self, event: Optional[Event] = None) -> Event:
        """Record the current time in ``event``, or in a new one, and return it."""
        recorded = Event() if event is None else event
        recorded.record(self)
        return recorded

    def __enter__(self) -> Stream:  # noqa: PYI034  Self is younger than 3.8
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: object) -> None:
        """Leave the context; exceptions are passed on."""


class Event:
    """A point in time."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002  torch_npu's signature
        self._moment: Optional[float] = None

    def record(self, stream: Any = None) -> None:  # noqa: ARG002  torch_npu's signature
        """Record the current time."""
        self._moment = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """Return at once: nothing is pending."""

    def synchronize(self) -> None:
        """Return at once: nothing is pending."""

    def query(self) -> bool:
        """Return True: nothing is pending."""
        return True

    def elapsed_time(self, end_event: Event) -> float:
        """Return the milliseconds from this event to ``end_event``.

        Raises:
            RuntimeError: One of the two was never recorded.
        """
        if self._moment is None or end_event._moment is None:
            raise RuntimeError("both events must be recorded before the time between them is asked for")
        return (end_event._moment - self._moment) * 1000.0


def current_stream(device: Any = None) -> Stream:
    """Return a new stream of ``device``; all streams behave alike."""
    return Stream(device)


default_stream = current_stream


def stream(given: Any) -> Any:
    """Return ``given`` itself: a stream is also a context manager."""
    return given


def set_stream(given: Any) -> None:
    """Accept a stream and do nothing: all streams behave alike."""


def synchronize(device: Any = None) -> None:
    """Return at once, because nothing is pending; refuse a device that does not exist."""
    ordinal.index_of(device)
