"""The debug files of transformers' ``model_addition_debugger``: a tree of module calls as JSON, tensors in files beside it.

    MODEL_debug_tree_FULL_TENSORS.json     {"module_path", "inputs", "outputs", "children": [...]}
    MODEL.layers.0.fc1_outputs.safetensors

Modules inside others have inputs alone, those without modules inside have outputs too. A tree whose values are printed text
(``use_repr=True``, the default) holds a few digits of a few elements, which prove nothing: it is refused.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from precflow.agent import intake
from precflow.agent.contract import MODULE, name_keys
from precflow.dumps.dtypes import NUMPY_DTYPES
from precflow.dumps.foreign import ForeignCall, ForeignDump, ForeignTensor
from precflow.dumps.formats import Format
from precflow.dumps.header import describe_error
from precflow.dumps.protocol import Dump
from precflow.dumps.tensor_files import TensorFile
from precflow.errors import DumpError

TOOL = "transformers' debugger"
LACKS = ("outputs of modules with others inside", "weights", "gradients", "random draws", "the device", "the environment")
_ENDING = "_debug_tree_FULL_TENSORS.json"
_LARGEST = 1 << 31
_DEEPEST = 64
_SHAPE = re.compile(r"torch\.Size\(\[([\d, ]*)\]\)")


def _find_tree(path: Path) -> Path | None:
    if path.is_file():
        return path if path.name.endswith(_ENDING) else None
    found = sorted(path.glob(f"*{_ENDING}"))
    return found[0] if found else None


def is_debug_tree(path: Path) -> bool:
    """Tell whether there is such a tree at a path."""
    try:
        return _find_tree(path) is not None
    except OSError:
        return False


def open_debug_tree(path: Path, *, allow_unsealed: bool = False) -> Dump:
    """Open the tree at a path.

    Raises:
        DumpError: It cannot be read, or its values are printed text.
    """
    del allow_unsealed
    file = _find_tree(path)
    if file is None:
        raise DumpError(f"there is no *{_ENDING} in {path}")
    try:
        tree = intake.read_json(file, _LARGEST)
    except (OSError, ValueError) as error:
        raise DumpError(
            f"{file} cannot be read: {describe_error(error)}", next_step="copy it again, or record it again"
        ) from error
    reader = _Reader(file.parent)
    reader.read(tree)
    if reader.printed and not any(tensor.file for call in reader.calls for tensor in (*call.inputs, *call.outputs)):
        raise DumpError(
            f"{file} holds its tensors as printed text, a few digits of a few elements",
            next_step="record it again: model_addition_debugger_context(model, debug_path=..., use_repr=False)",
        )
    if not reader.calls:
        raise DumpError(f"{file} has no call of a module")
    return ForeignDump(path, TOOL, reader.calls, damage=reader.damage, lacks=LACKS)


FORMAT = Format(TOOL, 30, is_debug_tree, open_debug_tree)


class _Reader:
    """Reads a tree; a module comes behind those that it calls.

    Args:
        folder: Where the files of tensors lie.
    """

    def __init__(self, folder: Path) -> None:
        self.calls: list[ForeignCall] = []
        self.damage: list[str] = []
        self.printed = 0  # tensors without a file
        self._folder = folder
        self._counts = Counter[str]()

    def read(self, node: Any, root: str | None = None, depth: int = 0) -> None:
        """Read a node and all below it."""
        if not isinstance(node, dict) or not isinstance(node.get("module_path"), str) or depth > _DEEPEST:
            self.damage.append(f"a node of the tree is no call of a module: {str(node)[:120]}")
            return
        root = node["module_path"] if root is None else root
        name = "" if node["module_path"] == root else node["module_path"].removeprefix(f"{root}.")
        call = self._counts[name]
        self._counts[name] += 1
        children = node.get("children")
        for child in children if isinstance(children, list) else ():
            self.read(child, root, depth + 1)
        given = node.get("inputs")
        arguments = given if isinstance(given, dict) else {}
        inputs = [*self._list(arguments.get("args")), *self._list(arguments.get("kwargs"))]
        outputs = node.get("outputs")
        self.calls.append(ForeignCall(MODULE, name, call=call, inputs=inputs, outputs=self._list(outputs, alone="0")))

    def _list(self, value: Any, alone: str = "") -> list[ForeignTensor]:
        found = []
        for place, leaf in self._walk(value, ""):
            tensor = self._read_tensor(place or alone, leaf)
            found += [tensor] if tensor is not None else []
        return found

    def _walk(self, value: Any, place: str, depth: int = 0) -> Iterator[tuple[str, Mapping[str, Any]]]:
        if depth > _DEEPEST:
            return
        if isinstance(value, dict) and {"shape", "dtype"} <= value.keys():
            yield place, value
        elif isinstance(value, dict):
            for key, each in zip(name_keys(value), value.values(), strict=True):
                yield from self._walk(each, f"{place}.{key}" if place else key, depth + 1)
        elif isinstance(value, list):
            for number, each in enumerate(value):
                yield from self._walk(each, f"{place}.{number}" if place else str(number), depth + 1)

    def _read_tensor(self, index: str, leaf: Mapping[str, Any]) -> ForeignTensor | None:
        shape, dtype = _SHAPE.fullmatch(str(leaf["shape"])), str(leaf["dtype"]).removeprefix("torch.")
        if shape is None or dtype not in NUMPY_DTYPES:
            self.damage.append(f"a tensor of type {str(leaf['dtype'])[:40]} and shape {str(leaf['shape'])[:80]}")
            return None
        sizes = tuple(int(size) for size in shape[1].split(",") if size.strip())
        value = leaf.get("value")
        name = value.removeprefix("./") if isinstance(value, str) else ""
        path = self._folder / name
        if not name:
            self.printed += 1
            return ForeignTensor(index, dtype, sizes)
        if Path(name).name != name or path.suffix != ".safetensors" or path.is_symlink():
            self.damage.append(f"{name[:200]!r} is no name of a tensor's file in the folder of the tree")
            return None
        return ForeignTensor(index, dtype, sizes, file=TensorFile(path, "data"))
