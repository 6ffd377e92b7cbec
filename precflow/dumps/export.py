"""Writes tensors of a dump as files that other programs read, ``.npy`` or text.

Tensors are written block by block, so that memory stays bounded. A file appears only once it is complete.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from precflow.dumps.dtypes import name_of
from precflow.dumps.mapped_pages import release
from precflow.errors import StoreError
from precflow.files import replacing

_BLOCK = 1 << 20  # elements read at a time
_LONGEST = 180  # bytes of a file name without its ending; file systems allow 255
_PLAIN = frozenset("._-=+,~")  # kept in file names, besides letters and digits
# Names of devices on Windows, with any ending: writing to con.npy would write to the console.
_RESERVED = frozenset(
    "con prn aux nul com1 com2 com3 com4 com5 com6 com7 com8 com9 lpt1 lpt2 lpt3 lpt4 lpt5 lpt6 lpt7 lpt8 lpt9".split()
)
_DIGITS = 8  # hex digits of the hash that ends a name which was changed or cut
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
_WIDENED = {"bfloat16", "float8_e4m3fn", "float8_e5m2"}  # the .npy format has no names for these types
_BITS: Mapping[int, type[np.unsignedinteger[Any]]] = {1: np.uint8, 2: np.uint16}

Text = Callable[[Any], str]


def write_npy(array: npt.NDArray[Any], path: Path, *, raw: bool = False) -> str:
    """Write a ``.npy`` file.

    Args:
        array: The tensor.
        path: The file; its folder exists.
        raw: Write the bits of bfloat16 and float8 as unsigned integers, instead of converting the values to float32.

    Returns:
        How the elements were converted, in words; ``""`` if they were not.

    Raises:
        StoreError: It cannot be written.
    """
    name = name_of(array.dtype)
    stored: np.dtype[Any] = array.dtype
    if name in _WIDENED:
        stored = np.dtype(_BITS[array.itemsize]) if raw else np.dtype(np.float32)
    with _whole(path) as temporary, temporary.open("wb") as file:
        head = {"descr": np.lib.format.dtype_to_descr(stored), "fortran_order": False, "shape": array.shape}
        np.lib.format.write_array_header_1_0(file, head)
        for block in _blocks(array):
            file.write((block.view(stored) if raw and name in _WIDENED else block.astype(stored, copy=False)).tobytes())
    if name not in _WIDENED:
        return ""
    return f"{name} as its bits, {stored.name}" if raw else f"{name} widened to float32, exactly"


def write_txt(array: npt.NDArray[Any], path: Path, spell: Text) -> str:
    """Write a text file: a line with type and shape, then one line for each row (the last axis).

    Args:
        array: The tensor.
        path: The file; its folder exists.
        spell: Returns an element as the shortest text that reads back as the same value.

    Raises:
        StoreError: It cannot be written.
    """
    length = array.shape[-1] if array.ndim and array.size else 1
    texts = _spelling(array.dtype, spell)
    with _whole(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        file.write(f"# {name_of(array.dtype)} {list(array.shape)}\n")
        place = 0
        for block in _blocks(array):
            for text in texts(block):
                place += 1
                file.write(text + ("\n" if place % length == 0 else " "))
    return ""


def file_names(texts: Sequence[str], ending: str) -> list[str]:
    """Return a file name for each text: not too long, and all different, also on file systems that ignore upper and lower case.

    A slash becomes two underscores; a character that file systems or shells may not accept becomes one. Letters of any script
    stay. A name that was changed in the second way, or cut, ends in eight hex digits of the hash of the text.

    >>> file_names(["encoder.0/linear.0/forward.output.0"], ".npy")
    ['encoder.0__linear.0__forward.output.0.npy']
    """
    names = [_make_safe(text) for text in texts]
    folded = [_folded(name) for name in names]
    often = {name for name in folded if folded.count(name) > 1} if len(set(folded)) < len(folded) else set()
    given: set[str] = set()
    chosen = []
    for text, name, key in zip(texts, names, folded, strict=True):
        different = _shorten_by_hash(name, text) if key in often else name
        number = 1
        while _folded(different) in given:  # the same text twice
            number += 1
            different = _shorten_by_hash(name, f"{text}#{number}")
        given.add(_folded(different))
        chosen.append(different + ending)
    return chosen


def require_room(folder: Path, needed: int) -> None:
    """Make sure that the disk of a folder has room for ``needed`` bytes.

    Raises:
        StoreError: It has not.
    """
    # The folder need not exist yet: its nearest parent that exists is on the same disk.
    free = shutil.disk_usage(next(place for place in (folder, *folder.resolve().parents) if place.exists())).free
    if needed > free:
        raise StoreError(
            f"{folder} has {free / 1e6:.0f} MB free, and {needed / 1e6:.0f} MB are needed",
            next_step="name another folder: --output DIR",
        )


def _make_safe(text: str) -> str:
    # One form for letters with accents: macOS may store "é" as two characters, and two names would be one file.
    plain = unicodedata.normalize("NFC", text).replace("/", "__")
    safe = "".join(letter if letter.isalnum() or letter in _PLAIN else "_" for letter in plain).strip(".") or "_"
    changed = safe != plain or safe.partition(".")[0].casefold() in _RESERVED or safe.startswith("-")
    if len(os.fsencode(safe)) > _LONGEST:  # the cut may fall into a letter of several bytes, whose rest is then ignored
        safe = os.fsencode(safe)[:_LONGEST].decode("utf-8", "ignore")
        changed = True
    return _shorten_by_hash(safe, text) if changed else safe


def _shorten_by_hash(name: str, text: str) -> str:
    # A name in a dump may hold half a surrogate pair, which JSON allows and plain UTF-8 refuses.
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_DIGITS // 2).hexdigest()
    return f"_{name}-{digest}" if name.startswith("-") or name.partition(".")[0].casefold() in _RESERVED else f"{name}-{digest}"


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name.casefold())


def _blocks(array: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    flat = np.ascontiguousarray(array).reshape(-1)
    for start in range(0, flat.size, _BLOCK):
        block = flat[start : start + _BLOCK]
        yield block
        release(block)


def _spelling(dtype: np.dtype[Any], spell: Text) -> Callable[[npt.NDArray[Any]], Iterator[str]]:
    """Return a function that spells a block; for types of one or two bytes it spells each different value only once."""
    if dtype.itemsize > 2:
        return lambda block: map(spell, block)
    known: dict[int, str] = {}

    def texts(block: npt.NDArray[Any]) -> Iterator[str]:
        """Spell values that have not occurred before, and look the others up by their bits."""
        bits = block.view(_BITS[dtype.itemsize])
        for number, place in zip(*np.unique(bits, return_index=True), strict=True):
            if int(number) not in known:
                known[int(number)] = spell(block[place])
        return (known[number] for number in bits.tolist())

    return texts


@contextlib.contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """Yield a temporary file that replaces ``path`` at the end, or is removed if an error occurs.

    Raises:
        StoreError: The disk is full, or the folder cannot be written.
    """
    try:
        with replacing(path) as temporary:
            yield temporary
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise StoreError(
                f"the disk of {path.parent} is full", next_step="free some space, or --output DIR on another disk"
            ) from error
        raise StoreError(
            f"{path} cannot be written: {error.strerror or error}", next_step="name another place: --output PATH"
        ) from error
