"""precflow's own format: a folder with ``dump.json``. Damage is reported, and damaged data is never used as evidence."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from precflow.agent import intake
from precflow.agent.contract import ERROR_FILE, FILLS_VERSION, HEADER_FILE
from precflow.dumps import header as headers
from precflow.dumps.dtypes import FLOATS, real_part
from precflow.dumps.formats import OWN, Format
from precflow.dumps.header import Header
from precflow.dumps.layout import rank_and_step_of, step_folders
from precflow.dumps.record_files import read_records
from precflow.dumps.records import Call, Record
from precflow.dumps.shards import Location, Shard
from precflow.dumps.tensors import Tensors
from precflow.dumps.unfinished import UnfinishedSteps, read_steps
from precflow.errors import DumpError


class OwnDump:
    """The dump of one side, a folder that an agent wrote; read-only, and safe to use from several threads.

    Attributes:
        path: The folder.
        header: Contents of ``dump.json``; an empty header if the dump was never sealed.
        sealed: The header exists, so the writer finished: it writes the header last.
    """

    def __init__(self, path: Path, header: Header, *, sealed: bool) -> None:
        self.path = path
        self.header = header
        self.sealed = sealed

    def calls(self, *, step: int | None = None, rank: int | None = None) -> list[Call]:
        """Return the calls ordered by rank, step and completion, optionally only those of one step or rank."""
        calls = self._read[0]
        if step is None and rank is None:
            return list(calls)
        return [call for call in calls if step in (None, call.step) and rank in (None, call.rank)]

    @property
    def damage(self) -> tuple[str, ...]:
        """What could not be read, or changed since it was sealed; no run with a damaged dump is aligned.

        Damaged bytes of tensors are not in it: they are found by :meth:`tensor`, :meth:`check` and :meth:`verify`.
        """
        damage = self._steps.damage + self._read[1] + self._tensors.problems
        return damage or self._contradictions  # a lost file alone makes the counts differ, which would say nothing new

    @property
    def altered(self) -> Mapping[tuple[int, int], str]:
        """``(rank, step)`` of record files whose bytes changed since they were sealed -> what is wrong; no line is trusted."""
        return self._read[2]

    def tensor(self, record: Record) -> npt.NDArray[Any]:
        """Return a record's tensor as a read-only view of the mapped shard, bfloat16 and float8 as dtypes of ``ml_dtypes``.

        The first time in this process, its bytes are checked against the content id. If only a part was kept (``record.part``),
        that part is returned.

        Raises:
            DumpError: It was not stored, its shard is missing, cut short or damaged, or it has another type or shape.
        """
        try:
            array = self._view(record)
            self._tensors.check(record, array=array)
        except DumpError as error:
            raise error.within(f"in {record.text}") from error
        return array

    def view(self, record: Record) -> npt.NDArray[Any]:
        """Return what :meth:`tensor` returns, but without checking the bytes; the caller checks them with :meth:`check`.

        Raises:
            DumpError: It was not stored, its shard is missing or cut short, or it has another type or shape.
        """
        try:
            return self._view(record)
        except DumpError as error:
            raise error.within(f"in {record.text}") from error

    def gather(self, records: Sequence[Record]) -> npt.NDArray[np.uint8] | None:
        """Return the bytes of small whole tensors of one type and shape together, checked; see :meth:`Tensors.gather`.

        ``None`` if they cannot be had so; then :meth:`view` and :meth:`check` give each of them, or say what is wrong.
        """
        return self._tensors.gather(records)

    def locate(self, record: Record) -> Location | None:
        """Return where a record's tensor lies in a shard, ``None`` if none holds all of it; its bytes are checked.

        Raises:
            DumpError: Its shard is cut short or damaged.
        """
        try:
            return self._tensors.locate(record)
        except DumpError as error:
            raise error.within(f"in {record.text}") from error

    def check(self, record: Record, found: str | None = None) -> None:
        """Make sure that the bytes of a record's tensor are those that were recorded.

        Args:
            record: The record.
            found: Content id (:mod:`precflow.dumps.digest`) that the caller computed while it read :meth:`view`. Without it the
                bytes are read here, once in this process.

        Raises:
            DumpError: They are not, or the tensor cannot be read.
        """
        try:
            self._tensors.check(record, found)
        except DumpError as error:
            raise error.within(f"in {record.text}") from error

    @property
    def fills(self) -> tuple[float, ...] | None:
        """The constants that its statistics count as mask fills; ``None`` if the agent used another definition of fills."""
        counted = self.header.fills
        return counted.constants if counted.version == FILLS_VERSION else None

    def sketch(self, record: Record) -> npt.NDArray[Any] | None:
        """Return the sketch of a record's tensor, float32 ``[1 or 2, buckets]``, or ``None`` if none was kept.

        Raises:
            DumpError: It is damaged.
        """
        return self._attached(record, "sketch")

    def rows(self, record: Record) -> npt.NDArray[Any] | None:
        """Return the norms of the rows of a record's tensor, float32, or ``None`` if none were kept.

        Raises:
            DumpError: They are damaged.
        """
        if record.row_norms is None:
            return self._attached(record, "rows")
        # The agent writes the norms of many tensors as one array; this record's are a slice of it.
        key, start, count = record.row_norms
        try:
            together = self._tensors.find(f"{key}.rows")
        except DumpError as error:
            raise error.within(f"in {record.text}") from error
        if together is None or together.ndim != 1 or not 0 <= start <= start + count <= together.size:
            raise DumpError(f"in {record.text}: the norms of its rows are not in any shard")
        return together[start : start + count]

    def verify(self) -> list[str]:
        """Read every byte and return all problems, in words.

        Files are checked against their seals, tensors against their content ids, and every stored tensor must be in a shard.
        """
        problems = list(self.damage)
        problems += self._tensors.verify()
        records = [record for call in self.calls() for record in (*call.inputs, *call.outputs)]
        problems += [
            f"{record.text} is not in any shard" for record in records if record.stored and not self._tensors.holds(record)
        ]
        return problems

    def _view(self, record: Record) -> npt.NDArray[Any]:
        if not record.stored:
            raise DumpError("its tensor was not stored")
        return self._tensors.view(record)

    def _attached(self, record: Record, what: str) -> npt.NDArray[Any] | None:
        try:
            return self._tensors.find(f"{record.key}.{what}") if record.content else None
        except DumpError as error:
            raise error.within(f"in {record.text}") from error

    @functools.cached_property
    def _steps(self) -> UnfinishedSteps:
        """All files of the dump: as the header lists them, or without a header as its finished steps do."""
        if not self.sealed:
            return read_steps(self.path)
        header = self.header
        ranks = {place[0] for name in header.files if (place := rank_and_step_of(name))}
        # `sites` belongs to the process that wrote the header, and to every rank without a list of its own.
        return UnfinishedSteps(header.files, {rank: header.sites_of_ranks.get(rank, header.sites) for rank in ranks}, ())

    @functools.cached_property
    def _contradictions(self) -> tuple[str, ...]:
        """Contradictions between the header and the records of a sealed dump; see :func:`find_contradictions`."""
        return tuple(find_contradictions(self.header, self._read[0])) if self.sealed else ()

    @functools.cached_property
    def _tensors(self) -> Tensors:
        files = self._steps.files
        return Tensors([Shard(self.path / name, name, files[name]) for name in self._named(".safetensors")])

    @functools.cached_property
    def _read(self) -> tuple[list[Call], tuple[str, ...], Mapping[tuple[int, int], str]]:
        """All calls in order, what is wrong with the record files, and which of them changed since they were sealed."""
        calls: list[Call] = []
        damage: list[str] = []
        changed: dict[tuple[int, int], str] = {}
        for name in self._named(".jsonl"):
            place = rank_and_step_of(name)
            sites = self._steps.sites.get(place[0], ()) if place else ()
            records = read_records(self.path, name, self._steps.files[name], sites)
            calls += records.calls
            damage += records.problems
            if place and records.altered:
                changed[place] = records.altered
        calls.sort(key=lambda call: (call.rank, call.step, call.order))
        return calls, tuple(damage), changed

    def _named(self, suffix: str) -> list[str]:
        """Return the names of files of one kind by rank, step and name."""
        names = [name for name in self._steps.files if name.endswith(suffix)]
        return sorted(names, key=lambda name: (rank_and_step_of(name) or (-1, -1), name))


def open_own(path: Path, *, allow_unsealed: bool) -> OwnDump:
    """Open a dump. Only the header is read; records and tensors are read when they are asked for.

    Raises:
        DumpError: There is no dump, it was never sealed, or its header is not usable.
    """
    try:
        # Listing the folder raises an error if it is missing or may not be read; `exists` alone would just be False.
        next(path.iterdir(), None)
        header_is_there = (path / HEADER_FILE).exists()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        raise DumpError(f"there is no dump at {path}: expected a folder with {HEADER_FILE}") from None
    except OSError as error:
        raise DumpError(
            f"{path} cannot be read: {error.strerror}", next_step="give yourself the right to read it, and all below it"
        ) from error
    if header_is_there:
        return OwnDump(path, headers.read(path / HEADER_FILE), sealed=True)
    if not allow_unsealed:
        raise _read_unfinished(path)
    if not step_folders(path):
        raise DumpError(
            f"there is no dump in {path}: expected {HEADER_FILE} and rank*/step*",
            next_step=f"give the folder that holds {HEADER_FILE}, or run this side again",
        )
    return OwnDump(path, Header(), sealed=False)


def is_own(path: Path) -> bool:
    """Tell whether there is a dump of precflow at a path, finished or not."""
    try:
        return (path / HEADER_FILE).exists() or (path / ERROR_FILE).exists() or bool(step_folders(path))
    except (OSError, ValueError):
        return False


FORMAT = Format(OWN, 0, is_own, open_own)


def find_contradictions(header: Header, calls: Sequence[Call]) -> list[str]:
    """Return contradictions between a header and the records, in words: counts, ranks, steps, levels, phases, type of weights.

    Args:
        header: Header of a sealed dump.
        calls: All of its calls.
    """
    records = [record for call in calls for record in (*call.inputs, *call.outputs)]
    counts, said = header.counts, header.capture
    places = sorted({place for name in header.files if (place := rank_and_step_of(name))})
    ranks = sorted({rank for rank, _ in places})
    pairs: list[tuple[str, Any, Any]] = [
        ("the number of calls", counts["calls"], len(calls)),
        ("the number of records", counts["records"], len(records)),
        # `sites_of_ranks` lists the ranks besides 0; without it there is a single rank, whatever its number.
        ("the ranks", sorted({0, *header.sites_of_ranks}) if header.sites_of_ranks else ranks[:1], ranks),
    ]
    for rank in ranks if "step" in said else ():
        steps = {step for of, step in places if of == rank}
        # A run with `keep_last` deletes earlier steps, so steps that the header asks for may be missing then.
        gone = set(said["step"]) - steps if header.dropped.get(rank) else set[int]()
        pairs.append((f"the steps of rank {rank}", sorted({*said["step"]} - gone), sorted(steps)))
    for key, seen in (("level", {call.level for call in calls}), ("phase", {call.phase for call in calls})):
        more = seen - set(said.get(key, seen))
        pairs.append((f"every {key}", sorted(seen - more), sorted(seen)))
    # A model may keep some weights in another type, so the run's type has to be one of theirs, not all of them. If only some
    # modules were recorded, the weights that have it may not be among them, and nothing follows. With mixed precision all
    # weights may be in float32 though operators compute in 16 bits.
    weights = {real_part(record.dtype) for record in records if record.weight} & {*FLOATS}
    judged = "*" in said.get("scope", ()) and "mixed_precision" not in header.facts
    if weights and judged and real_part(header.dtype) not in weights:
        pairs.append(("the type of the weights", header.dtype, ", ".join(sorted(weights))))
    return [
        f"{HEADER_FILE} and the records disagree on {what}: {one}, and {other}" for what, one, other in pairs if one != other
    ]


def _read_unfinished(path: Path) -> DumpError:
    raised = path / ERROR_FILE
    reason = "its writer was stopped before it finished"
    if raised.is_file():  # the agent writes it instead of the header; its message only makes ours clearer, so damage is ignored
        try:
            message = intake.read_json(raised).get("message", "")
        except (OSError, ValueError, AttributeError):
            message = ""
        reason = f"its workload raised {message or 'an error'} (see {ERROR_FILE})"
    return DumpError(f"{path} was never sealed: {HEADER_FILE} is missing, {reason}", next_step="run this side again")
