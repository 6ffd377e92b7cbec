"""A dump as the judge reads it: header, calls, tensors; what is damaged is told and never taken for evidence."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy.typing as npt

from precflow.agent.contract import ERROR_FILE, HEADER_FILE
from precflow.dumps import header as headers
from precflow.dumps.header import Header
from precflow.dumps.parsing import parse_call
from precflow.dumps.records import Call, Record
from precflow.dumps.shards import Shard, seal_problem
from precflow.errors import DumpError

_PLACES = "rank*/step*"


class Dump:
    """A folder that one side wrote; read-only, and safe to use from several threads.

    Make it with :meth:`Dump.open`.

    Attributes:
        path: The folder.
        header: What ``dump.json`` says; an empty header where the dump was never sealed.
        sealed: The header is there, so the writer finished.
    """

    def __init__(self, path: Path, header: Header, *, sealed: bool) -> None:
        self.path = path
        self.header = header
        self.sealed = sealed

    @classmethod
    def open(cls, path: Path, *, allow_unsealed: bool = False) -> Dump:
        """Open a dump; nothing but the header is read.

        Args:
            path: The folder.
            allow_unsealed: Take a dump whose writer was stopped, with what is whole in it.

        Raises:
            DumpError: There is no dump, it was never sealed, or its header is not usable.
        """
        if not path.is_dir():
            raise DumpError(f"there is no dump at {path}: expected a folder with {HEADER_FILE}")
        if (path / HEADER_FILE).is_file():
            return cls(path, headers.read(path / HEADER_FILE), sealed=True)
        if not allow_unsealed:
            raise _unsealed(path)
        if next(path.glob(_PLACES), None) is None:
            raise DumpError(
                f"there is no dump in {path}: expected {HEADER_FILE} and {_PLACES}",
                next_step=f"give the folder that holds {HEADER_FILE}, or run this side again",
            )
        return cls(path, Header(), sealed=False)

    def calls(self, *, step: int | None = None, rank: int | None = None) -> list[Call]:
        """Return the calls by rank, step and order of completion, of one step or rank where it is given."""
        calls, _ = self._read
        return [call for call in calls if step in (None, call.step) and rank in (None, call.rank)]

    @property
    def damage(self) -> tuple[str, ...]:
        """What could not be read or is not what the header says; a dump with damage is never whole evidence."""
        _, damage = self._read
        _, torn = self._index
        return damage + torn

    def tensor(self, record: Record) -> npt.NDArray[Any]:
        """Return a record's tensor as a read-only view of the mapped shard; bfloat16 and float8 by ``ml_dtypes``.

        Raises:
            DumpError: It was not stored, its shard is missing, cut short or damaged, or it has another type or shape.
        """
        try:
            return self._tensor(record)
        except DumpError as error:
            raise error.within(f"in {record.text}") from error

    def verify(self) -> list[str]:
        """Read every byte and return all problems: files against their seals, records against the shards."""
        problems = [
            problem for name, seal in self.header.files.items() if (problem := seal_problem(self.path / name, name, seal))
        ]
        problems += [problem for problem in self.damage if problem not in problems]
        index, _ = self._index
        records = [record for call in self.calls() for record in (*call.inputs, *call.outputs)]
        problems += [
            f"{record.text} is not in any shard" for record in records if record.stored and record.content not in index
        ]
        return problems

    def _tensor(self, record: Record) -> npt.NDArray[Any]:
        if not record.stored:
            raise DumpError("its tensor was not stored")
        index, torn = self._index
        shard = index.get(record.content)
        if shard is None:
            raise DumpError("; ".join(("no shard holds its tensor", *torn)))
        array = shard.tensor(record.content)
        found = (array.dtype.name, array.shape)
        if found != (record.dtype, record.shape):
            wanted = f"{record.dtype} {list(record.shape)}"
            raise DumpError(f"{shard.name} holds {found[0]} {list(found[1])} where the record says {wanted}")
        return array

    @functools.cached_property
    def _index(self) -> tuple[dict[str, Shard], tuple[str, ...]]:
        """Content id -> the shard that holds it, and what is wrong with the shards' indexes."""
        index: dict[str, Shard] = {}
        torn = []
        for name in self._files(".safetensors"):
            shard = Shard(self.path / name, name, self.header.files.get(name))
            try:
                for content in shard.slots():
                    index.setdefault(content, shard)
            except DumpError as error:
                torn.append(error.message)
        return index, tuple(torn)

    @functools.cached_property
    def _read(self) -> tuple[list[Call], tuple[str, ...]]:
        """All calls in order, and what is wrong with the record files."""
        calls: list[Call] = []
        damage: list[str] = []
        for name in self._files(".jsonl"):
            seal = self.header.files.get(name)
            problem = seal_problem(self.path / name, name, seal) if seal else ""
            damage += [problem] if problem else []
            self._read_file(name, calls, damage)
        return sorted(calls, key=lambda call: (call.rank, call.step, call.order)), tuple(damage)

    def _read_file(self, name: str, calls: list[Call], damage: list[str]) -> None:
        try:
            text = (self.path / name).read_bytes().decode("utf-8", errors="replace")
        except OSError as error:
            if self.header.files.get(name) is None:
                damage.append(f"{name} cannot be read: {error.strerror}")
            return
        for number, line in enumerate(text.removesuffix("\n").split("\n") if text else (), start=1):
            self._read_line(f"{name}:{number}", line, calls, damage)

    def _read_line(self, place: str, line: str, calls: list[Call], damage: list[str]) -> None:
        try:
            calls.append(parse_call(line, self.header.sites))
        except ValueError as error:
            damage.append(f"{place} is torn: {error}")

    def _files(self, suffix: str) -> list[str]:
        """Names of the dump's own files: those of the header, or those that are there where no header is."""
        if self.sealed:
            return sorted(name for name in self.header.files if name.endswith(suffix))
        found = self.path.glob(f"{_PLACES}/*{suffix}")
        return sorted(path.relative_to(self.path).as_posix() for path in found)


def _unsealed(path: Path) -> DumpError:
    raised = path / ERROR_FILE
    reason = "its writer was stopped before it finished"
    if raised.is_file():
        try:
            message = json.loads(raised.read_text(encoding="utf-8")).get("message", "")
        except (OSError, ValueError, AttributeError):
            message = ""
        reason = f"its workload raised {message or 'an error'} (see {ERROR_FILE})"
    return DumpError(f"{path} was never sealed: {HEADER_FILE} is missing, {reason}", next_step="run this side again")
