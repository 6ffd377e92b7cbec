"""A call that runs without precflow: ``repro.py`` and ``repro.safetensors``, to hand to whoever owns the operator.

The script is a file of ``templates/`` and always the same. What it runs (operator, arguments) is in the tensors' file.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from precflow import resources
from precflow.agent import intake
from precflow.diagnosis.evidence.tensors import ObservedCall
from precflow.dumps.dtypes import name_of
from precflow.files import open_regular, replacing

SCRIPT, TENSORS = "repro.py", "repro.safetensors"
LARGEST = 1 << 26
"""Most bytes of the tensors: 64 MiB fit into a mail or an issue, more has to be cut by hand."""
_CODES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "bool": "BOOL",
    "uint8": "U8",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
}


def write_repro(observed: ObservedCall, folder: Path) -> bool:
    """Write script and tensors of a call into a folder; return whether it could be done.

    It cannot if the call is no operator of the forward pass, if not all of its tensors were kept, or if they are too large.
    """
    call, target = observed.reference, observed.target
    if observed.whole is None or target is None or not call.operator or call.phase != "forward":
        return False
    given = observed.whole[1]
    tensors = {f"input.{index}": value for index, value in given.inputs.items()} | {"output": given.output}
    if any(name_of(value.dtype) not in _CODES for value in tensors.values()):
        return False
    if sum(value.nbytes for value in tensors.values()) > LARGEST:
        return False
    facts = {
        "operator": call.operator,
        "name": call.name,
        "site": call.site,
        "arguments": dict(target.arguments),
        "reference_arguments": dict(call.arguments),
    }
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / TENSORS) as temporary, temporary.open("wb") as file:
        for part in _serialise(tensors, facts):
            file.write(part)
    with replacing(folder / SCRIPT) as temporary:
        shutil.copyfile(resources.directory("templates") / SCRIPT, temporary)
    return True


def read_facts(path: Path) -> dict[str, Any] | None:
    """Return what a file of tensors says about its call; ``None`` if there is no such file."""
    if not path.is_file():
        return None
    with open_regular(path) as file:
        size = int.from_bytes(file.read(8), "little")
        head = intake.parse_json(file.read(min(size, LARGEST)))
    facts: dict[str, Any] = json.loads(head["__metadata__"]["call"])
    return facts


def _serialise(tensors: dict[str, npt.NDArray[Any]], facts: dict[str, Any]) -> Iterator[bytes]:
    """Yield the parts of a safetensors file: length of the header, header, data."""
    head: dict[str, Any] = {"__metadata__": {"call": json.dumps(facts)}}
    begin = 0
    for name, value in tensors.items():
        end = begin + value.dtype.itemsize * math.prod(value.shape)
        head[name] = {"dtype": _CODES[name_of(value.dtype)], "shape": list(value.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)  # so that the data begins at a multiple of eight bytes
    yield len(text).to_bytes(8, "little")
    yield text
    for value in tensors.values():
        yield np.ascontiguousarray(value).tobytes()
