"""Dumps of operators that Ascend's runtime writes: a file for each operator that a device ran.

    {type}.{name}.{task}[.{stream}].{time}      uint64 length | header (protobuf) | bytes of inputs, then of outputs

in folders ``{time}/{device}/{model}/{model_id}/{index}``, of which any may be given; ``index`` is the step, ``device`` the
rank. Tensors lie in the layout of the device (NC1HWC0, FRACTAL_NZ...) and are turned back to their original shape. The output
of a fused operator goes by the name of the original operator that would have produced it: its header says which, or a graph
file beside the dump (:mod:`precflow.dumps.graph_files`). Only the graph file says what else was fused into it.

Fields of the header (message ``DumpData``): 1 version, 2 time, 3 outputs, 4 inputs, 5 buffers, 6 name. Of an output: 1 type,
2 layout, 3 shape, 4 original operator (1 name, 2 output), 6 size, 7 original shape; of an input 1, 2, 3, 5 size, 6 original.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from precflow.agent import intake
from precflow.agent.contract import MODULE
from precflow.dumps.dtypes import NUMPY_DTYPES
from precflow.dumps.foreign import ForeignCall, ForeignDump, ForeignTensor
from precflow.dumps.formats import Format
from precflow.dumps.graph_files import FusedOperator, read_graphs, spell
from precflow.dumps.protocol import Dump
from precflow.dumps.shards import Location
from precflow.errors import DumpError

TOOL = "Ascend's runtime"
_FUSED_AWAY = "what was fused away"
LACKS = ("modules", "which tensors are weights", _FUSED_AWAY, "gradients", "the environment", "losses")
Array = npt.NDArray[Any]

_FILE = re.compile(
    r"(?P<type>[A-Za-z0-9_-]+)\.(?P<name>[A-Za-z0-9_-]+)\.(?P<task>\d+)(?:\.(?P<stream>\d+))?\.(?P<time>\d{10,})"
)
_LENGTH = 8  # bytes before the header
_LARGEST_HEADER = 1 << 24
_MOST_LOOKED_AT = 100  # files, to recognize a dump of which some are damaged
_DEEPEST = 6  # folders between what is given and the files
_DTYPES = {
    1: "float32",
    2: "float16",
    3: "int8",
    4: "uint8",
    5: "int16",
    6: "uint16",
    7: "int32",
    8: "int64",
    9: "uint32",
    10: "uint64",
    11: "bool",
    12: "float64",
    16: "complex64",
    17: "complex128",
    27: "bfloat16",
    34: "float8_e5m2",
    35: "float8_e4m3fn",
}
NC1HWC0, FRACTAL_Z, FRACTAL_NZ, NDC1HWC0 = 3, 4, 29, 32
_PLAIN_LAYOUTS = frozenset([0, 1, 2, 16, 30, 31])  # NCHW, NHWC, ND, HWCN, NCDHW, NDHWC: as the graph had it


class FileTensor(NamedTuple):
    """One input or output of an operator in its file.

    Attributes:
        path: The file.
        place: ``output 1``, for messages.
        dtype: Name of the element type.
        layout: Number of the layout.
        shape: Sizes as the device has them.
        original: Sizes as the graph had them; those of the device where the file does not say.
        begin: First byte.
        end: Byte behind the last one.
        operator: Name of the original operator; ``""`` if the file does not say.
        output: Number of its output.
    """

    path: Path
    place: str
    dtype: str
    layout: int
    shape: tuple[int, ...]
    original: tuple[int, ...]
    begin: int
    end: int
    operator: str = ""
    output: int = 0

    @property
    def name(self) -> str:
        """The name for messages."""
        return f"{self.path.name}, {self.place}"

    @property
    def member(self) -> str:
        """Which tensor of the file it is."""
        return self.place

    def read(self) -> Array:
        """Return the tensor in its original shape, mapped where the device's layout is that.

        Raises:
            DumpError: The file is missing or cut short, or the layout does not fit the shape.
        """
        dtype = NUMPY_DTYPES[self.dtype]
        if not math.prod(self.shape):
            return np.empty(self.original, dtype)
        try:
            with intake.open_regular(self.path) as file:
                size = os.fstat(file.fileno()).st_size
                if size < self.end:
                    raise DumpError(f"{self.name} is cut short: it ends at byte {self.end}, the file at {size}")
                whole = np.memmap(file, np.uint8, mode="r")
        except (OSError, ValueError) as error:
            raise DumpError(f"{self.path.name} cannot be read: {error}") from error
        values = np.ndarray(self.shape, dtype, whole, self.begin)
        try:
            return restore_layout(values, self.layout, self.original)
        except ValueError as error:
            shapes = f"{list(self.shape)} of layout {self.layout} cannot be turned to {list(self.original)}"
            raise DumpError(f"{self.name}: {shapes}: {error}") from error

    def locate(self) -> Location | None:
        """Return where its bytes lie; ``None`` if they lie in a layout of the device."""
        is_plain = self.layout in _PLAIN_LAYOUTS and self.shape == self.original
        return Location(self.path, self.begin, self.end) if is_plain else None

    def verify(self) -> None:
        """Read it; such a file has no checksum."""
        self.read()


def is_ascend(path: Path) -> bool:
    """Tell whether there is such a file at a path, or in folders below it."""
    try:
        return any(_has_header(file) for file in itertools.islice(_list_files(path), _MOST_LOOKED_AT))
    except OSError:
        return False


def _has_header(file: Path) -> bool:
    with intake.open_regular(file) as stream:
        size = os.fstat(stream.fileno()).st_size
        return size > _LENGTH and int.from_bytes(stream.read(_LENGTH), "little") <= size - _LENGTH


def _list_files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield from [path] if _FILE.fullmatch(path.name) else []
        return
    for folder, folders, names in os.walk(path):
        here = Path(folder)
        folders.sort()
        if len(here.relative_to(path).parts) >= _DEEPEST:
            folders.clear()
        yield from (here / name for name in sorted(names) if _FILE.fullmatch(name))


def open_ascend(path: Path, *, allow_unsealed: bool = False) -> Dump:
    """Open the operators at a path.

    Raises:
        DumpError: No file of them can be read, or they are of several runs or models.
    """
    del allow_unsealed
    files = list(_list_files(path))
    graph = read_graphs(path)
    places = _find_places(path, files)
    found, damage = list[tuple[int, int, str, ForeignCall]](), list[str]()
    for file, (step, rank) in zip(files, places, strict=True):
        try:
            time, of_file = _read_operator(file, step, rank, graph)
        except DumpError as error:
            damage.append(error.message)
            continue
        found += [(step, time, file.name, call) for call in of_file]
    if not found:
        raise DumpError(f"{path} has no operator that can be read" + (f": {damage[0]}" if damage else ""))
    counts = Counter[tuple[str, int, int]]()
    calls = []
    for _, _, _, call in sorted(found, key=lambda one: one[:3]):
        key = (call.module, call.step, call.rank)
        call.call = counts[key]
        counts[key] += 1
        calls.append(call)
    lacks = LACKS if not graph else tuple(text for text in LACKS if text != _FUSED_AWAY)
    return ForeignDump(path, TOOL, calls, damage=damage, lacks=lacks, fused=_find_fused(graph, calls))


def _find_fused(graph: Mapping[str, FusedOperator], calls: Sequence[ForeignCall]) -> dict[str, str]:
    """Return the operators that were computed inside of one that the dump has -> the last of them, whose output it is."""
    there = {call.module for call in calls}
    fused = dict[str, str]()
    for operator in graph.values():
        shown = [_name(origin) for origin, _ in operator.outputs.values() if _name(origin) in there]
        inside = (_name(name) for name in operator.originals)
        fused |= {name: shown[-1] for name in inside if shown and name not in there}
    return fused


FORMAT = Format(TOOL, 40, is_ascend, open_ascend)


def _find_places(path: Path, files: list[Path]) -> list[tuple[int, int]]:
    """Return step and rank of each file: the last folder is the index of the data, the one four above it the device.

    Raises:
        DumpError: They are of several runs or models.
    """
    base = path if path.is_dir() else path.parent
    folders = [file.relative_to(base).parts[:-1] for file in files]
    if len({len(parts) for parts in folders}) > 1 or not folders or not folders[0]:
        return [(0, 0)] * len(files)
    levels = [sorted({parts[level] for parts in folders}) for level in range(len(folders[0]))]
    for level, names in enumerate(levels):
        from_end = len(levels) - level  # 1: index, 2: id of the model, 3: model, 4: device, 5: time
        if len(names) > 1 and from_end in {2, 3, 5}:
            what = {2: "models", 3: "models", 5: "runs"}[from_end]
            raise DumpError(
                f"{path} has dumps of several {what}: {', '.join(names[:5])}", next_step="name one of their folders"
            )
    steps = {name: number for number, name in enumerate(sorted(levels[-1], key=_as_number))}
    ranks = {name: number for number, name in enumerate(levels[-4])} if len(levels) >= 4 else {}
    return [(steps[parts[-1]], ranks.get(parts[-4], 0) if len(parts) >= 4 else 0) for parts in folders]


def _as_number(name: str) -> tuple[int, str]:
    return (int(name), "") if name.isdigit() else (-1, name)


def _read_operator(file: Path, step: int, rank: int, graph: Mapping[str, FusedOperator]) -> tuple[int, list[ForeignCall]]:
    """Return the time of an operator and the operator: as one call for each original operator whose output it has.

    Raises:
        DumpError: The file is damaged; says what of it at which byte.
    """
    named = _FILE.fullmatch(file.name)
    kind, written = (named["type"], int(named["time"])) if named else ("", 0)
    try:
        with intake.open_regular(file) as stream:
            size = os.fstat(stream.fileno()).st_size
            length = int.from_bytes(stream.read(_LENGTH), "little")
            if length > min(size - _LENGTH, _LARGEST_HEADER):
                raise DumpError(f"{file.name} is damaged: a header of {length} bytes in a file of {size}")
            header = _read_header(stream.read(length))
    except OSError as error:
        raise DumpError(f"{file.name} cannot be read: {error.strerror}") from error
    except (ValueError, UnicodeDecodeError) as error:
        raise DumpError(f"{file.name} is damaged in its header: {error}") from error
    begin = _LENGTH + length
    slots = list[FileTensor]()
    for what, fields in [*(("input", each) for each in header.inputs), *(("output", each) for each in header.outputs)]:
        place = f"{what} {sum(slot.place.startswith(what) for slot in slots)}"
        slot = _place(file, place, fields, begin)
        begin = slot.end
        if begin > size:
            raise DumpError(f"{slot.name} is cut short: it ends at byte {begin}, the file at {size}")
        slots.append(slot)
    inputs = [_describe(slot, str(number)) for number, slot in enumerate(slots) if slot.place.startswith("input")]
    outputs = [slot for slot in slots if slot.place.startswith("output")]
    name = header.name or (named["name"] if named else file.name)
    of_graph = graph.get(spell(name), FusedOperator()).outputs
    by_origin = dict[str, list[ForeignTensor]]({} if outputs else {name: []})
    for number, slot in enumerate(outputs):
        origin, index = of_graph.get(number) or ((slot.operator, slot.output) if slot.operator else (name, number))
        by_origin.setdefault(origin, []).append(_describe(slot, str(index)))
    calls = [
        ForeignCall(MODULE, _name(origin), class_name=kind, step=step, rank=rank, inputs=inputs, outputs=tensors)
        for origin, tensors in by_origin.items()
    ]
    return header.time or written, calls


def _name(operator: str) -> str:
    return operator.replace("/", ".")


def _describe(slot: FileTensor, index: str) -> ForeignTensor:
    return ForeignTensor(index, slot.dtype, slot.original, file=slot)


def _place(file: Path, place: str, fields: _Fields, begin: int) -> FileTensor:
    dtype = _DTYPES.get(fields.dtype)
    if dtype is None:
        raise DumpError(f"{file.name}, {place}, at byte {begin}: elements of type {fields.dtype}, which is not read here")
    if fields.layout not in {*_PLAIN_LAYOUTS, NC1HWC0, FRACTAL_Z, FRACTAL_NZ, NDC1HWC0}:
        raise DumpError(f"{file.name}, {place}, at byte {begin}: layout {fields.layout}, which is not read here")
    needed = math.prod(fields.shape) * NUMPY_DTYPES[dtype].itemsize
    if needed != fields.size:
        shape = f"{dtype} {list(fields.shape)} takes {needed} bytes"
        raise DumpError(f"{file.name}, {place}, at byte {begin}: {shape}, its header says {fields.size}")
    original = fields.original if fields.original or fields.layout not in _PLAIN_LAYOUTS else fields.shape
    if fields.layout in _PLAIN_LAYOUTS and math.prod(original) == math.prod(fields.shape):
        original = fields.shape if not fields.original else fields.original
    return FileTensor(
        file, place, dtype, fields.layout, fields.shape, original, begin, begin + fields.size, fields.operator, fields.output
    )


def restore_layout(values: Array, layout: int, original: tuple[int, ...]) -> Array:
    """Return a tensor as the graph had it, without the padding of the device's layout.

    Args:
        values: The tensor as the device has it.
        layout: Number of the layout.
        original: Sizes as the graph had them.

    Raises:
        ValueError: The shapes do not fit.
    """
    if layout == FRACTAL_NZ:  # [..., W1, H1, H0, W0] -> [..., H, W]
        *lead, w1, h1, h0, w0 = values.shape
        order = (*range(len(lead)), *(len(lead) + axis for axis in (1, 2, 0, 3)))
        whole = values.transpose(order).reshape(*lead, h1 * h0, w1 * w0)
        height, width = original[-2:] if len(original) > 1 else (1, *original)
        return _cut(whole, (*lead, height, width)).reshape(original)
    if layout == NC1HWC0:  # [N, C1, H, W, C0] -> [N, C, H, W]
        n, c1, height, width, c0 = values.shape
        return _cut(values.transpose(0, 1, 4, 2, 3).reshape(n, c1 * c0, height, width), original)
    if layout == NDC1HWC0:  # [N, D, C1, H, W, C0] -> [N, C, D, H, W]
        n, depth, c1, height, width, c0 = values.shape
        return _cut(values.transpose(0, 2, 5, 1, 3, 4).reshape(n, c1 * c0, depth, height, width), original)
    if layout == FRACTAL_Z:  # [C1 H W, N1, N0, C0] -> [N, C, H, W]
        _, n1, n0, c0 = values.shape
        n, channels, height, width = original
        c1 = values.shape[0] // (height * width) if height * width else 0
        parts = values.reshape(c1, height, width, n1, n0, c0)
        return _cut(parts.transpose(3, 4, 0, 5, 1, 2).reshape(n1 * n0, c1 * c0, height, width), (n, channels, height, width))
    return values.reshape(original)


def _cut(values: Array, wanted: tuple[int, ...]) -> Array:
    """Return the first elements along each axis.

    Raises:
        ValueError: There are fewer than that.
    """
    if values.ndim != len(wanted) or any(size > there for size, there in zip(wanted, values.shape, strict=True)):
        raise ValueError(f"{list(values.shape)} has no part of shape {list(wanted)}")
    return np.ascontiguousarray(values[tuple(slice(size) for size in wanted)])


@dataclass(frozen=True)
class _Fields:
    """What a header says of one input or output."""

    dtype: int
    layout: int
    shape: tuple[int, ...]
    size: int
    original: tuple[int, ...]
    operator: str = ""
    output: int = 0


class _Header(NamedTuple):
    name: str
    time: int
    inputs: list[_Fields]
    outputs: list[_Fields]


def _read_header(data: bytes) -> _Header:
    """Return the header of a file.

    Raises:
        ValueError: It is no message of this kind.
    """
    name, time, inputs, outputs = "", 0, list[_Fields](), list[_Fields]()
    for number, value in _list_fields(data):
        if number == 2 and isinstance(value, int):
            time = value
        elif number == 6 and isinstance(value, bytes):
            name = value.decode()
        elif number in {3, 4} and isinstance(value, bytes):
            fields = dict(_list_fields(value))
            after = 1 if number == 3 else 0  # an output has one field more, its original operator
            origin = dict(_list_fields(_take(fields, 4, bytes, b""))) if number == 3 else {}
            (outputs if number == 3 else inputs).append(
                _Fields(
                    _take(fields, 1, int, 0),
                    _take(fields, 2, int, 0),
                    _read_sizes(_take(fields, 3, bytes, b"")),
                    _take(fields, 5 + after, int, 0),
                    _read_sizes(_take(fields, 6 + after, bytes, b"")),
                    _take(origin, 1, bytes, b"").decode(),
                    _take(origin, 2, int, 0),
                )
            )
    return _Header(name, time, inputs, outputs)


def _take(fields: dict[int, int | bytes], number: int, kind: type[Any], default: Any) -> Any:
    value = fields.get(number, default)
    if not isinstance(value, kind):
        raise ValueError(f"field {number} is of another kind")  # noqa: TRY004  of a damaged file, as all its errors are
    return value


def _list_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field of a protobuf message.

    Raises:
        ValueError: The message is cut off, or has a field of an unknown kind.
    """
    place = 0
    while place < len(data):
        key, place = _read_number(data, place)
        kind = key & 7
        if kind == 0:
            value, place = _read_number(data, place)
            yield key >> 3, value
            continue
        length, place = _read_number(data, place) if kind == 2 else ({1: 8, 5: 4}.get(kind, -1), place)
        if length < 0:
            raise ValueError(f"a field of kind {kind}")
        if place + length > len(data):
            raise ValueError(f"it is cut off at byte {len(data)}, inside a field of {length} bytes")
        if kind == 2:
            yield key >> 3, data[place : place + length]
        place += length


def _read_number(data: bytes, place: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        if place >= len(data):
            raise ValueError(f"it is cut off at byte {place}, inside a number")
        number |= (data[place] & 127) << shift
        place += 1
        if data[place - 1] < 128:
            return number & ((1 << 64) - 1), place
    raise ValueError("a number of more than ten bytes")


def _read_sizes(data: bytes) -> tuple[int, ...]:
    """Return the sizes of a shape, packed or one by one."""
    sizes = list[int]()
    for number, value in _list_fields(data):
        if number != 1:
            continue
        if isinstance(value, int):
            sizes.append(value)
            continue
        place = 0
        while place < len(value):
            size, place = _read_number(value, place)
            sizes.append(size)
    if len(sizes) > 16 or any(size >= 1 << 48 for size in sizes):
        raise ValueError(f"a shape of {len(sizes)} sizes up to {max(sizes)}")
    return tuple(sizes)
