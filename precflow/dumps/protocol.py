"""What a dump can be asked, whatever wrote it and however it is seen.

:mod:`precflow.dumps.formats` opens dumps on disk, of precflow's own format and of others. The views of
:mod:`precflow.dumps.views` answer the same questions about a dump that is seen in another way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from precflow.dumps.header import Header
from precflow.dumps.records import Call, Record
from precflow.dumps.shards import Location

Array = npt.NDArray[Any]


class Dump(Protocol):
    """What one side computed: its calls, their records, and what was kept of each tensor. Safe to use from several threads."""

    @property
    def path(self) -> Path:
        """The folder or file."""

    @property
    def header(self) -> Header:
        """What is known of the whole run; an empty header if the writer did not finish."""

    @property
    def sealed(self) -> bool:
        """Whether its writer finished."""

    @property
    def damage(self) -> tuple[str, ...]:
        """What could not be read, or changed since it was sealed, in words; no run with a damaged dump is aligned.

        Damaged bytes of tensors are not in it: they are found by :meth:`tensor`, :meth:`check` and :meth:`verify`.
        """

    @property
    def altered(self) -> Mapping[tuple[int, int], str]:
        """``(rank, step)`` of record files whose bytes changed since they were sealed -> what is wrong; no line is trusted."""

    @property
    def fills(self) -> tuple[float, ...] | None:
        """The constants that its statistics count as mask fills; ``None`` if it counted something else, or nothing."""

    def calls(self, *, step: int | None = None, rank: int | None = None) -> list[Call]:
        """Return the calls ordered by rank, step and completion, optionally only those of one step or rank."""

    def tensor(self, record: Record) -> Array:
        """Return a record's tensor, checked against its content id; bfloat16 and float8 as dtypes of ``ml_dtypes``.

        If only a part was kept (``record.part``), that part is returned.

        Raises:
            DumpError: It was not stored, is missing, cut short or damaged, or has another type or shape.
        """

    def view(self, record: Record) -> Array:
        """Return what :meth:`tensor` returns, but without checking the bytes; the caller checks them with :meth:`check`.

        Raises:
            DumpError: It was not stored, is missing or cut short, or has another type or shape.
        """

    def check(self, record: Record, found: str | None = None) -> None:
        """Make sure that the bytes of a record's tensor are those that were recorded.

        Args:
            record: The record.
            found: Content id (:mod:`precflow.dumps.digest`) that the caller computed while it read :meth:`view`. Without it the
                bytes are read here.

        Raises:
            DumpError: They are not, or the tensor cannot be read.
        """

    def gather(self, records: Sequence[Record]) -> npt.NDArray[np.uint8] | None:
        """Return the bytes of small whole tensors of one type and shape together, checked, ``[tensors, bytes]``.

        ``None`` if they cannot be had so; then :meth:`view` and :meth:`check` give each of them, or say what is wrong.
        """

    def locate(self, record: Record) -> Location | None:
        """Return where a record's tensor lies in a file, ``None`` if no file holds all of it as it is; its bytes are checked.

        Raises:
            DumpError: The file is cut short or damaged.
        """

    def sketch(self, record: Record) -> Array | None:
        """Return the sketch of a record's tensor, float32 ``[1 or 2, buckets]``, or ``None`` if none was kept.

        Raises:
            DumpError: It is damaged.
        """

    def rows(self, record: Record) -> Array | None:
        """Return the norms of the rows of a record's tensor, float32, or ``None`` if none were kept.

        Raises:
            DumpError: They are damaged.
        """

    def verify(self) -> list[str]:
        """Read every byte and return all problems, in words."""
