"""Dumps that other tools wrote, as dumps of ours: the reader of a format says what is in a folder, and the rest is done here.

A reader (a module of :mod:`precflow.dumps.formats`) yields a :class:`ForeignCall` for each call of a module or an operator, by
our names, with a :class:`ForeignTensor` for each tensor. This module adds what no such tool keeps and every comparison needs:

    content ids     of tensors that lie in files, each of which is read once; of others the checksum of the tool, such as
                    ``crc32:1f2e3d4c``, which is comparable with the same checksum alone
    weights         which of the tensors that a call reads is a parameter
    a header        the weights and the inputs that the run began with, types, steps and ranks
    statistics      as far as they were kept: a smallest and a largest value, a mean and a norm
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from precflow.agent.capture.operator_names import is_movement
from precflow.agent.contract import DIGEST_SIZE, FORWARD, INPUT, LEVELS, MODULE, OUTPUT, PHASES, ROOT_MODULE
from precflow.dumps.digest import WORTH_COMPILING, content_id, id_of_lanes, lanes
from precflow.dumps.dtypes import FLOATS, NUMPY_DTYPES, float_facts, is_floating, name_of, real_part
from precflow.dumps.garbage import collector_off
from precflow.dumps.header import ContentEntries, ContentEntry, CountedFills, Header
from precflow.dumps.mapped_pages import release
from precflow.dumps.protocol import Array
from precflow.dumps.records import Call, CallRole, Record, Statistics
from precflow.dumps.shards import Location
from precflow.errors import DumpError

LEAST_ROUNDING = 2.0**-20  # of sums that another tool has made, in whatever order: of float32 over many elements
RANGE = "range"  # kind of a weight's identity where only its smallest and largest value are known


class KeptFile(Protocol):
    """Where one tensor lies in a file; two that are equal are the same tensor."""

    @property
    def path(self) -> Path:
        """The file."""

    @property
    def member(self) -> str:
        """Which of the tensors in it."""

    @property
    def name(self) -> str:
        """Its name for messages."""

    def read(self) -> Array:
        """Return the tensor, mapped where that is possible.

        Raises:
            DumpError: The file is missing, cut short or damaged.
        """

    def locate(self) -> Location | None:
        """Return where its bytes lie, in C order; ``None`` if no file holds them so."""

    def verify(self) -> None:
        """Read every byte of the file and compare it with the checksums in it.

        Raises:
            DumpError: It is damaged.
        """


class ForeignTensor(msgspec.Struct, frozen=True, gc=False):
    """One tensor of a call, as another tool has kept it.

    Attributes:
        index: Path in the nested arguments or outputs.
        dtype: Name of the element type.
        shape: Sizes.
        statistics: What is known of its elements.
        checksum: ``KIND:DIGITS``, equal for equal bits; ``""`` if there is none.
        file: The file that holds it.
        weight: Name of the parameter that it is; ``""`` if it is none, or if the tool does not say.
    """

    index: str
    dtype: str
    shape: tuple[int, ...]
    statistics: Statistics | None = None
    checksum: str = ""
    file: KeptFile | None = None
    weight: str = ""


class ForeignCall(msgspec.Struct, gc=False):
    """One call of a module or an operator, in the words of :class:`precflow.dumps.records.Call`."""

    level: str
    module: str
    phase: str = FORWARD
    class_name: str = ""
    call: int = 0
    operator: str = ""
    ordinal: int = 0
    step: int = 0
    rank: int = 0
    site: str = ""
    arguments: Mapping[str, str] = msgspec.field(default_factory=dict)
    inputs: Sequence[ForeignTensor] = ()
    outputs: Sequence[ForeignTensor] = ()
    forward: tuple[int, ...] = ()


class _Part(NamedTuple):
    """What the files of a dump say about one tensor: content id, or what is wrong with its file."""

    content: str
    problem: str = ""


class ForeignDump:
    """The dump of another tool; read-only, and safe to use from several threads.

    Args:
        path: The folder or file.
        tool: Name of the tool, for messages.
        calls: Its calls, in order of completion within each step and rank.
        weights: ``(rank, step)`` -> name of a parameter or buffer -> it, as the step began.
        inputs: Name of an input of the model -> it. Without any, what the first call of each step is given.
        damage: What could not be read, in words.
        lacks: What the format does not hold, in words, such as ``what random numbers were drawn``.
        fused: Name of an operator that was computed inside of another one -> the module whose output shows it.

    Attributes:
        path: The folder or file.
        header: What is known of the run.
        sealed: Always true: no other tool says whether it has finished.
        damage: What could not be read.
    """

    def __init__(  # noqa: PLR0913  what a reader has found, each by name
        self,
        path: Path,
        tool: str,
        calls: Sequence[ForeignCall],
        *,
        weights: Mapping[tuple[int, int], Mapping[str, ForeignTensor]] | None = None,
        inputs: Mapping[str, ForeignTensor] | None = None,
        damage: Sequence[str] = (),
        lacks: Sequence[str] = (),
        fused: Mapping[str, str] | None = None,
    ) -> None:
        self.path = path
        self.sealed = True
        self._files: dict[str, KeptFile] = {}  # key of a record -> a file that holds its tensor
        weights = dict(weights or {})
        tensors = [tensor for call in calls for tensor in (*call.inputs, *call.outputs)]
        tensors += [tensor for step in weights.values() for tensor in step.values()] + list((inputs or {}).values())
        parts = _read_files([tensor.file for tensor in tensors if tensor.file])
        self._problems = {_name_problem(file): part.problem for file, part in parts.items() if part.problem}
        names = {place: _name_weights(step, parts) for place, step in weights.items()}
        with collector_off() as made:
            self._calls = _number(calls, parts, names, self._files)
            made.append(len(self._calls))
        self.damage = tuple(damage)
        given = dict(inputs or {}) or _find_inputs(self._calls, calls)
        self.header = replace(
            _make_header(
                tool, self._calls, _enter(weights[min(weights)] if weights else {}, parts), _enter(given, parts), lacks
            ),
            fused=dict(fused or {}),
        )

    @property
    def altered(self) -> Mapping[tuple[int, int], str]:
        """Nothing: no other tool seals its files."""
        return {}

    @property
    def fills(self) -> tuple[float, ...] | None:
        """No constants: other tools count the fills of masks among the ordinary numbers."""
        return ()

    def calls(self, *, step: int | None = None, rank: int | None = None) -> list[Call]:
        """Return the calls ordered by rank, step and completion, optionally only those of one step or rank."""
        if step is None and rank is None:
            return list(self._calls)
        return [call for call in self._calls if step in {None, call.step} and rank in {None, call.rank}]

    def tensor(self, record: Record) -> Array:
        """Return a record's tensor, checked against the content id that its file had when the dump was opened.

        Raises:
            DumpError: It was not stored, is missing, cut short or damaged, or has another type or shape.
        """
        array = self.view(record)
        self.check(record)
        return array

    def view(self, record: Record) -> Array:
        """Return what :meth:`tensor` returns, without checking the bytes.

        Raises:
            DumpError: It was not stored, is missing or cut short, or has another type or shape.
        """
        file = self._find_file(record)
        array = file.read()
        dtype = name_of(array.dtype)
        if (dtype, array.shape) != (record.dtype, record.shape):
            found, wanted = f"{dtype} {list(array.shape)}", f"{record.dtype} {list(record.shape)}"
            raise DumpError(f"in {record.text}: {file.name} holds {found}, and the dump says {wanted}")
        return array

    def check(self, record: Record, found: str | None = None) -> None:
        """Make sure that the bytes of a record's tensor are those that its file had when the dump was opened.

        Raises:
            DumpError: They are not, or the tensor cannot be read.
        """
        if (content_id(self.view(record)) if found is None else found) != record.content:
            raise DumpError(f"in {record.text}: {self._find_file(record).name} has changed since the dump was opened")

    def gather(self, records: Sequence[Record]) -> npt.NDArray[np.uint8] | None:
        """Return the bytes of small whole tensors of one type and shape together, checked; ``None`` if one cannot be read."""
        try:
            rows = [np.ascontiguousarray(self.tensor(record)).reshape(-1).view(np.uint8) for record in records]
        except DumpError:
            return None
        return np.stack(rows)

    def locate(self, record: Record) -> Location | None:
        """Return where a record's tensor lies; its bytes are checked.

        Raises:
            DumpError: The file is cut short, damaged or has changed.
        """
        file = self._files.get(record.key)
        if file is None:
            return None
        self.check(record)
        return file.locate()

    def sketch(self, record: Record) -> Array | None:
        """Return ``None``: no other tool keeps sketches."""
        del record
        return None

    def rows(self, record: Record) -> Array | None:
        """Return ``None``: no other tool keeps norms of rows."""
        del record
        return None

    def verify(self) -> list[str]:
        """Read every byte and return all problems, in words."""
        problems = list(self.damage)
        files = {file.path: file for file in self._files.values()}.values()
        records = [record for call in self._calls for record in (*call.inputs, *call.outputs)]
        checks: list[Callable[[], object]] = [
            *(file.verify for file in files),
            *(functools.partial(self.view, record) for record in records if record.key in self._files),
        ]
        found = [_find_problem(check) for check in checks]
        return [*problems, *self._problems.values(), *filter(None, found)]

    def _find_file(self, record: Record) -> KeptFile:
        if not record.stored:
            raise DumpError(f"in {record.text}: its tensor was not stored")
        file = self._files.get(record.key)
        if file is None:
            why = self._problems.get(record.mark, "the file of its tensor cannot be read")
            raise DumpError(f"in {record.text}: {why}")
        return file


def make_statistics(  # noqa: PLR0913  the four numbers by name
    dtype: str, shape: Sequence[int], *, smallest: Any, largest: Any, mean: Any = None, norm: Any = None
) -> Statistics | None:
    """Return what the four numbers of other tools say about a tensor; ``None`` if they say nothing.

    They are over all elements, mask fills too. A smallest or largest value that is NaN says that there is a NaN, not how many.

    Args:
        dtype: Name of the element type, in which such tools compute mean and norm.
        shape: Sizes.
        smallest: Smallest element.
        largest: Largest element.
        mean: Mean of all elements.
        norm: Euclidean norm; infinite also if it leaves the range of the type.
    """
    low, high, middle, length = [None if value is None else float(value) for value in (smallest, largest, mean, norm)]
    if low is None or high is None:
        return None
    count = math.prod(shape)
    has_nan = math.isnan(low) or math.isnan(high)
    ordinary = math.isfinite(low) and math.isfinite(high)
    return Statistics(
        minimum=low if ordinary else None,
        maximum=high if ordinary else None,
        sum=middle * count if ordinary and middle is not None and math.isfinite(middle) else None,
        square=length * length if ordinary and length is not None and math.isfinite(length) else None,
        nan=int(has_nan),
        positive_infinity=int(high == math.inf),
        negative_infinity=int(low == -math.inf),
        sentinel=0,
        zero=None,
        saturated=0,
        rounding=_find_rounding(dtype),
    )


@functools.cache
def _find_rounding(dtype: str) -> float:
    """Return the error of sums in a type, relative to the norm."""
    digits = float_facts(real_part(dtype)).digits if real_part(dtype) in FLOATS else 53
    return 2.0**-digits + LEAST_ROUNDING


def kind_of(content: str) -> str:
    """Return the kind of a content id: ``""`` of ours, else such as ``crc32``. Ids of two kinds say nothing about each other.

    >>> kind_of("824087d03562cbda6502751f0c07382a"), kind_of("crc32:1f2e3d4c float32[3]")
    ('', 'crc32')
    """
    return content.partition(":")[0] if ":" in content else ""


def identify_range(dtype: str, shape: Iterable[int], smallest: float | None, largest: float | None) -> str:
    """Return what stands for the content of a weight or an input where its smallest and largest value are all that was kept.

    >>> identify_range("float32", (3, 77), -1, 2.5)
    'range:-1.0,2.5 float32[3,77]'
    """
    ends = ",".join("none" if end is None else str(float(end)) for end in (smallest, largest))
    return f"{RANGE}:{ends} {describe_type(dtype, shape)}"


def describe_type(dtype: str, shape: Iterable[int]) -> str:
    """Return ``float32[3,77]``.

    >>> describe_type("float32", (3, 77))
    'float32[3,77]'
    """
    return f"{dtype}[{','.join(map(str, shape))}]"


def _read_files(files: Sequence[KeptFile]) -> dict[KeptFile, _Part]:
    """Return the content id of each file, or what is wrong with it."""
    different = list(dict.fromkeys(files))
    compiled = True if _count_bytes(different) >= WORTH_COMPILING else None

    def read(file: KeptFile) -> _Part:
        """Read one file and identify its tensor."""
        try:
            array = file.read()
            flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            found = _Part(id_of_lanes(name_of(array.dtype), array.shape, lanes(flat, compiled=compiled)))
        except DumpError as error:
            return _Part("", error.message)
        release(array)
        return found

    # One after the other: with threads, what Python does for each of thousands of small files takes longer than it saves.
    return {file: read(file) for file in different}


def _count_bytes(files: Iterable[KeptFile]) -> int:
    """Return the size of all files that are there."""
    return sum(path.stat().st_size for path in {file.path for file in files} if path.is_file())


def _find_problem(check: Callable[[], object]) -> str:
    """Return what an error says; ``""`` without one."""
    try:
        check()
    except DumpError as error:
        return error.message
    return ""


def _name_problem(file: KeptFile) -> str:
    """Return the mark of a record whose file cannot be read."""
    return f"unreadable:{file.path}:{file.member}"


def _identify(tensor: ForeignTensor, parts: Mapping[KeptFile, _Part]) -> tuple[str, str]:
    """Return content id and mark of a tensor."""
    if tensor.file:
        part = parts[tensor.file]
        if part.content:
            return part.content, ""
        if part.problem:
            return "", _name_problem(tensor.file)
    if tensor.checksum:
        return f"{tensor.checksum} {describe_type(tensor.dtype, tensor.shape)}", ""
    if tensor.statistics is None:
        return "", ""
    known = tensor.statistics
    numbers = (known.minimum, known.maximum, known.sum, known.square, known.nonfinite)
    text = f"{describe_type(tensor.dtype, tensor.shape)} {numbers}"
    return "", hashlib.blake2b(text.encode(), digest_size=DIGEST_SIZE).hexdigest()


def _name_weights(weights: Mapping[str, ForeignTensor], parts: Mapping[KeptFile, _Part]) -> dict[str, list[str]]:
    """Return content id or mark -> the names of the weights that have it."""
    names = defaultdict[str, list[str]](list)
    for name, tensor in weights.items():
        known = "".join(_identify(tensor, parts))
        if known and is_floating(tensor.dtype):
            names[known].append(name)
    return names


def _number(
    calls: Sequence[ForeignCall],
    parts: Mapping[KeptFile, _Part],
    names: Mapping[tuple[int, int], Mapping[str, Sequence[str]]],
    files: dict[str, KeptFile],
) -> list[Call]:
    """Return the calls with their records, ordered by rank, step and completion; fills ``files``."""
    orders = Counter[tuple[int, int]]()
    found = []
    for each in calls:
        place = (each.rank, each.step)
        order = orders[place]
        orders[place] += 1
        known = names.get(place, {})
        movement = bool(each.operator) and is_movement(each.operator)
        sides = [
            CallRole(each.module, each.call, each.operator, each.ordinal, each.phase, role, each.step, each.rank, order)
            for role in (INPUT, OUTPUT)
        ]
        records = []
        for whose, tensors in zip(sides, (each.inputs, each.outputs), strict=True):
            for tensor in tensors:
                content, mark = _identify(tensor, parts)
                weight = tensor.weight
                if not weight and whose.role == INPUT:
                    weight = _find_weight(known.get(content or mark, ()), each.module)
                if tensor.file is not None and content:
                    files.setdefault(content, tensor.file)
                records.append(
                    Record(
                        whose,
                        tensor.index,
                        tensor.dtype,
                        tensor.shape,
                        content,
                        stored=tensor.file is not None,
                        source=None,
                        weight=weight,
                        statistics=None if tensor.file is not None else tensor.statistics,
                        mark=mark,
                    )
                )
        split = len(each.inputs)
        found.append(
            Call(
                order=order,
                level=each.level,
                module=each.module,
                class_name=each.class_name,
                call=each.call,
                operator=each.operator,
                ordinal=each.ordinal,
                phase=each.phase,
                step=each.step,
                rank=each.rank,
                site=each.site,
                movement=movement,
                compiled=False,
                arguments=each.arguments,
                inputs=tuple(records[:split]),
                outputs=tuple(records[split:]),
                forward=each.forward,
            )
        )
    found.sort(key=lambda call: (call.rank, call.step, call.order))
    return found


def _find_weight(names: Sequence[str], module: str) -> str:
    """Return the weight that a call of a module reads, of those that have the same content: its own rather than another's."""
    own = [name for name in names if module and name.startswith(f"{module}.")]
    return (own or list(names) or [""])[0]


def _find_inputs(made: Sequence[Call], calls: Sequence[ForeignCall]) -> dict[str, ForeignTensor]:
    """Return what the model is given in each step and rank: what goes into the outermost module around its first call.

    Calls are in order of completion, so that the first one may be an operator to which the model has given something else.
    """
    given: dict[tuple[int, int], Call] = {}
    for call in made:
        if call.phase == FORWARD and call.inputs:
            first = given.setdefault((call.rank, call.step), call)
            if call.level == MODULE and not call.call and _is_around(call, first):
                given[call.rank, call.step] = call
    starts = {(call.rank, call.step, call.module, call.operator, call.call, call.ordinal) for call in given.values()}
    data = {(*place, record.index) for place, call in given.items() for record in call.inputs if not record.weight}
    return {
        f"{f'rank{call.rank}.' if call.rank else ''}step{call.step}.{tensor.index}": tensor
        for call in calls
        if call.phase == FORWARD and (call.rank, call.step, call.module, call.operator, call.call, call.ordinal) in starts
        for tensor in call.inputs
        if (call.rank, call.step, tensor.index) in data
    }


def _is_around(module: Call, call: Call) -> bool:
    """Tell whether the call of a module has another first call of a step inside it, by their names."""
    inside = call.module == module.module if call.operator else call.module.startswith(f"{module.module}.")
    return inside or module.module == ROOT_MODULE


def _enter(tensors: Mapping[str, ForeignTensor], parts: Mapping[KeptFile, _Part]) -> ContentEntries:
    """Return weights or inputs as a header has them.

    Where neither the tensor nor a checksum was kept, its smallest and its largest value stand for it: unlike a mean, these are
    elements, and no device computes others.
    """
    entries = {}
    for name, tensor in tensors.items():
        content, _ = _identify(tensor, parts)
        known = tensor.statistics
        if not content and known is not None and tensor.file is None:
            content = identify_range(tensor.dtype, tensor.shape, known.minimum, known.maximum)
        if content:
            entries[name] = ContentEntry(content, tensor.dtype, tensor.shape)
    return enter(entries)


def enter(entries: Mapping[str, ContentEntry]) -> ContentEntries:
    """Return entries with the digest over all of them; no digest of none."""
    if not entries:
        return ContentEntries()
    text = "\n".join(f"{name} {entry.content}" for name, entry in sorted(entries.items()))
    return ContentEntries(hashlib.blake2b(text.encode(), digest_size=DIGEST_SIZE).hexdigest(), dict(entries))


def _make_header(
    tool: str, calls: Sequence[Call], weights: ContentEntries, inputs: ContentEntries, lacks: Sequence[str]
) -> Header:
    records = [record for call in calls for record in (*call.inputs, *call.outputs)]
    floats = Counter(record.dtype for record in records if real_part(record.dtype) in FLOATS)
    kept = "tensors" if any(record.stored for record in records) else "statistics" if any(map(_has_sums, records)) else "digest"
    state = hashlib.blake2b(digest_size=DIGEST_SIZE)
    for record in records:
        state.update(f"{record.text} {record.known}\n".encode())  # a mark is made of the statistics
    state.update(f"{weights.digest} {inputs.digest}".encode())
    ranks = sorted({call.rank for call in calls})
    contents = {record.key: record for record in records if record.stored and record.content}
    return replace(
        Header(),
        tool=tool,
        lacks=tuple(lacks),
        dtype=real_part(floats.most_common(1)[0][0]) if floats else "float32",
        capture={
            "level": [level for level in LEVELS if any(call.level == level for call in calls)],
            "phase": [phase for phase in PHASES if any(call.phase == phase for call in calls)],
            "scope": ["*"],
            "step": sorted({call.step for call in calls}),
            "detail": kept,
        },
        fills=CountedFills(version=0),
        weights=weights,
        inputs=inputs,
        counts={
            "calls": len(calls),
            "records": len(records),
            "tensors": len(contents),
            "bytes": sum(math.prod(one.shape) * NUMPY_DTYPES[one.dtype].itemsize for one in contents.values()),
        },
        sites_of_ranks={rank: () for rank in ranks if rank},
        content=state.hexdigest(),
    )


def _has_sums(record: Record) -> bool:
    return record.statistics is not None
