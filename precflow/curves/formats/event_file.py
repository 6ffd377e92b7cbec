"""Curves in TensorBoard's event files, read without TensorBoard.

A file is a row of records (TFRecord): length (8 bytes, little endian), a checksum of these 8 bytes (4 bytes), the data, a
checksum of the data (4 bytes). Checksums are CRC-32C, masked. The data is one protobuf message ``Event``; of it and of the
messages inside only these fields are read::

    Event        step = 2 (varint)   summary = 5 (message)
    Summary      value = 1 (message, repeated)
    Value        tag = 1 (text)   simple_value = 2 (float)   tensor = 8 (message)
    TensorProto  dtype = 1 (varint)   tensor_content = 4 (bytes)   float_val = 5 (floats)   double_val = 6 (doubles)

Sources: tensorflow/core/lib/io/record_writer.h, core/lib/hash/crc32c.h, core/util/event.proto, core/framework/summary.proto
and tensor.proto.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from precflow.curves.formats import Format
from precflow.curves.log import Log
from precflow.curves.series import Series, make_series
from precflow.curves.wanted import Wanted, find_column
from precflow.errors import CurveError

_POLYNOMIAL = 0x82F63B78  # of CRC-32C (Castagnoli), reflected
_MASK_DELTA = 0xA282EAD8
_HEADER, _FOOTER = 12, 4
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FLOAT, _DOUBLE = 1, 2  # DT_FLOAT and DT_DOUBLE of tensor.proto


def is_event_file(head: bytes) -> bool:
    """Tell whether a file begins with a record: its length and the checksum of it.

    Args:
        head: The first 12 bytes or more.
    """
    if len(head) < _HEADER:
        return False
    return bool(_mask(_checksums(np.frombuffer(head[:8], np.uint8)[None, :]))[0] == int.from_bytes(head[8:12], "little"))


def _read(logs: Sequence[Log], wanted: Wanted) -> Series:
    """Return a curve of the event files of one run, in the order of their names, which is that of their time.

    Raises:
        CurveError: A file is damaged before its end, or none has the tag.
    """
    by_tag: dict[str, list[tuple[int, float]]] = defaultdict(list)
    notes = []
    place = logs[0].place if len(logs) == 1 else logs[0].place.removesuffix(f"/{logs[0].path.name}")
    for log in logs:
        data, name = log.read_bytes(), log.path.name
        records, cut = _split(data, name)
        if cut:
            notes.append(f"the last record of {name} is cut and left out")
        for start, end in records:
            for tag, step, value in _read_event(data, start, end, name):
                by_tag[tag].append((step, value))
    column = find_column(wanted, list(by_tag), place)
    steps, values = zip(*by_tag[column], strict=True)
    return make_series(steps, values, source=f"{place}, {column}", notes=notes)


def _find(folder: Path, wanted: Wanted) -> Sequence[Path]:
    del wanted  # a file has every curve
    return sorted(folder.glob("*tfevents*"))


def _split(data: bytes, place: str) -> tuple[list[tuple[int, int]], bool]:
    """Return where the data of each record is, and whether the file ends within a record.

    Raises:
        CurveError: A checksum is wrong.
    """
    records, position, size = [], 0, len(data)
    while position + _HEADER <= size:
        length = int.from_bytes(data[position : position + 8], "little")
        end = position + _HEADER + length
        if end + _FOOTER > size:
            break
        records.append((position + _HEADER, end))
        position = end + _FOOTER
    _verify(data, records, place)
    if position < size and position + _HEADER <= size and not is_event_file(data[position : position + _HEADER]):
        raise _damaged(place, position)
    return records, position < size


def _verify(data: bytes, records: Sequence[tuple[int, int]], place: str) -> None:
    """Check every checksum; records of one length at once, because byte after byte would take a second for each 5 MB.

    Raises:
        CurveError: One is wrong.
    """
    raw = np.frombuffer(data, np.uint8)
    headers = [(start - _HEADER, start - _FOOTER) for start, _ in records]
    by_length: dict[int, list[int]] = defaultdict(list)
    for start, end in (*headers, *records):
        by_length[end - start].append(start)
    for length, starts in by_length.items():
        places = np.array(starts)
        found = _mask(_checksums(raw[places[:, None] + np.arange(length)]))
        noted = raw[places[:, None] + length + np.arange(_FOOTER)].copy().view("<u4")[:, 0]
        if (found != noted).any():
            raise _damaged(place, int(places[np.argmax(found != noted)]))


def _make_table() -> npt.NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1).astype(np.uint32)
    return table


_TABLE = _make_table()


def _checksums(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """Return the CRC-32C of each row."""
    crc = np.full(len(rows), 0xFFFFFFFF, dtype=np.uint32)
    for column in rows.T:
        crc = _TABLE[(crc ^ column) & 0xFF] ^ (crc >> 8)
    return crc ^ np.uint32(0xFFFFFFFF)


def _mask(crc: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Return checksums as record files write them: rotated by 15 bits, plus a constant."""
    rotated = (crc >> 15) | (crc << 17)
    return (rotated.astype(np.uint64) + _MASK_DELTA & 0xFFFFFFFF).astype(np.uint32)


def _damaged(place: str, position: int) -> CurveError:
    return CurveError(
        f"{place} is damaged at byte {position}: a checksum is wrong", next_step="copy the file again from where it was written"
    )


def _read_event(data: bytes, start: int, end: int, place: str) -> Iterator[tuple[str, int, float]]:
    """Yield (tag, step, value) of each number in an event."""
    step, summaries = 0, []
    for field, kind, value in _fields(data, start, end, place):
        if (field, kind) == (2, _VARINT):
            step = value[0]
        elif (field, kind) == (5, _BYTES):
            summaries.append(value)
    for summary in summaries:
        for field, kind, value in _fields(data, *summary, place):
            if (field, kind) == (1, _BYTES):
                tag, number = _read_value(data, *value, place)
                if number is not None:
                    yield tag, step, number


def _read_value(data: bytes, start: int, end: int, place: str) -> tuple[str, float | None]:
    tag, number = "", None
    for field, kind, value in _fields(data, start, end, place):
        if (field, kind) == (1, _BYTES):
            tag = data[value[0] : value[1]].decode("utf-8", "replace")
        elif (field, kind) == (2, _FIXED32):
            number = struct.unpack_from("<f", data, value[0])[0]
        elif (field, kind) == (8, _BYTES):
            number = _read_tensor(data, *value, place)
    return tag, number


def _read_tensor(data: bytes, start: int, end: int, place: str) -> float | None:
    """Return the number of a tensor with one element; ``None`` if it has another size or type, as images have."""
    dtype, content = 0, b""
    for field, kind, value in _fields(data, start, end, place):
        if (field, kind) == (1, _VARINT):
            dtype = value[0]
        elif (field, kind) == (4, _BYTES) or (field in (5, 6) and kind == _BYTES):
            content += data[value[0] : value[1]]
        elif (field, kind) in {(5, _FIXED32), (6, _FIXED64)}:
            content += data[value[0] : value[0] + (4 if kind == _FIXED32 else 8)]
    if dtype == _FLOAT and len(content) == 4:
        return float(struct.unpack("<f", content)[0])
    if dtype == _DOUBLE and len(content) == 8:
        return float(struct.unpack("<d", content)[0])
    return None


def _fields(data: bytes, start: int, end: int, place: str) -> Iterator[tuple[int, int, tuple[int, int]]]:
    """Yield (number, wire type, value) of each field of a message; the value is (number, 0) or where its bytes are.

    Raises:
        CurveError: The bytes are no such message.
    """
    position = start
    while position < end:
        key, position = _read_varint(data, position, end, place)
        field, kind = key >> 3, key & 7
        if kind == _VARINT:
            number, position = _read_varint(data, position, end, place)
            yield field, kind, (number - (1 << 64) if number >> 63 else number, 0)
            continue
        length = {_FIXED64: 8, _FIXED32: 4}.get(kind, -1)
        if kind == _BYTES:
            length, position = _read_varint(data, position, end, place)
        if length < 0 or position + length > end:
            raise CurveError(
                f"{place} has a record that is no event, at byte {start}", next_step="give a TensorBoard event file"
            )
        yield field, kind, (position, position + length)
        position += length


def _read_varint(data: bytes, position: int, end: int, place: str) -> tuple[int, int]:
    number = shift = 0
    while position < end and shift < 70:
        byte = data[position]
        number |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return number & 0xFFFFFFFFFFFFFFFF, position
    raise CurveError(f"{place} has a record that is no event, at byte {position}", next_step="give a TensorBoard event file")


FORMAT = Format("event files of TensorBoard", 10, lambda log: is_event_file(log.head), _read, _find)
