"""Tensors in plain files: a folder of ``.npy``, ``.npz``, ``.safetensors`` or ``.pt``, or one such file with several tensors.

The name of a file, or of a tensor in it, is the name of the module whose output it is: ``encoder.layers.0.fc1.npy`` is compared
with what ``encoder.layers.0.fc1`` returned. Folders inside become part of the name. What MindStudio's tools make of TensorFlow,
Caffe and ONNX models has the number of the output and a time behind the name of the operator::

    conv1_relu.0.1670205071724946.npy
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from precflow.agent.contract import MODULE
from precflow.dumps.dtypes import name_of
from precflow.dumps.foreign import ForeignCall, ForeignDump, ForeignTensor
from precflow.dumps.formats import Format
from precflow.dumps.protocol import Dump
from precflow.dumps.tensor_files import ENDINGS, TensorFile, list_members
from precflow.errors import DumpError

TOOL = "plain files"
LACKS = ("inputs", "weights", "the order of calls", "gradients", "the device", "the environment", "losses")
_OF_OPERATOR = re.compile(r"(?P<name>.+)\.(?P<index>\d{1,4})\.(?P<time>\d{10,})")
_MOST = 1_000_000  # files


def list_files(path: Path) -> list[Path]:
    """Return the files with tensors at a path or below it, in order of their names with numbers counted as such."""
    if path.is_file():
        return [path] if path.suffix in ENDINGS else []
    files = [file for file in path.rglob("*") if file.suffix in ENDINGS and file.is_file()]
    return sorted(files, key=lambda file: _count_numbers(file.relative_to(path).as_posix()))


def _count_numbers(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def is_plain(path: Path) -> bool:
    """Tell whether a path is such a file, or a folder with such a file directly in it."""
    try:
        if path.is_file():
            return path.suffix in ENDINGS
        return path.is_dir() and any(file.suffix in ENDINGS and file.is_file() for file in path.iterdir())
    except OSError:
        return False


def open_plain(path: Path, *, allow_unsealed: bool = False) -> Dump:
    """Open a file or folder of tensors.

    Raises:
        DumpError: It cannot be read, or two tensors have one name.
    """
    del allow_unsealed
    files = list_files(path)
    calls, damage = list[ForeignCall](), list[str]()
    counts = Counter[tuple[str, str]]()
    for file in files:
        if file.is_symlink():
            damage.append(f"{file} is a link, which may lead out of the dump")
            continue
        base = "" if path.is_file() else file.relative_to(path).with_suffix("").as_posix().replace("/", ".")
        try:
            members = sorted(list_members(file), key=_count_numbers)
        except DumpError as error:
            damage.append(error.message)
            continue
        for member in members:
            alone = len(members) == 1 and base
            name = base if alone or not member else f"{base}.{member}" if base and len(files) > 1 else member
            match = _OF_OPERATOR.fullmatch(name)
            name, index = (match["name"], match["index"]) if match else (name or file.stem, "0")
            kept = TensorFile(file, member)
            try:
                array = kept.read()
            except DumpError as error:
                damage.append(error.message)
                continue
            tensor = ForeignTensor(index, name_of(array.dtype), array.shape, file=kept)
            calls.append(ForeignCall(MODULE, name, call=counts[name, index], outputs=(tensor,)))
            counts[name, index] += 1
    if not calls:
        raise DumpError(f"{path} has no tensor that can be read" + (f": {damage[0]}" if damage else ""))
    return ForeignDump(path, TOOL, calls, damage=damage, lacks=LACKS)


FORMAT = Format(TOOL, 90, is_plain, open_plain)
