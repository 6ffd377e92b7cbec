"""Recorded calls, as the judge hands them over: ``calls.jsonl``, with tensors that lie in the shards of dumps.

One line is one call. ``sides`` holds the tensors of each side, ``arguments`` what the reference passed besides tensors::

    {"call": "encoder.layers.0.mlp.fc1/linear.0/forward@0.0", "level": "api", "operator": "linear", "class": "Linear",
     "phase": "forward", "arguments": {},
     "sides": {"reference": {"inputs": [T, ...], "outputs": [T, ...]}, "target": {...}}}
    T = {"index": "0", "dtype": "float32", "shape": [2, 4], "file": "/dumps/tensors-0.safetensors", "begin": 1234, "bytes": 32}

``begin`` counts from the start of the file, not from the end of its index. ``file`` is null if the dump lacks the tensor. A key
``content`` holds the content id: what movement made of a tensor need not be stored then. It is moved again, and the ids are
compared.

A line with a key ``gradients`` is the backward of a module, by the functions that it called (:class:`GradientGraph`)::

    {"functions": [{"level": "api", "operator": "gelu", "class": "MLP", "arguments": {}, "is_whole": true,
                    "inputs": {"0": [KEY, "float32", [2, 4]]}, "outputs": {"0": [KEY, "float32", [2, 4]]}}, ...],
     "total": {KEY: NAME}, "parts": {KEY: [NAME, ...]}, "results": [{"index": "0", "of": KEY, "call": "...", "named": "0"}]}

A ``KEY`` names a tensor of the forward; its values are the input of that index, if it has any. A ``NAME`` is the index of an
input that is a gradient, ``""`` if it was not kept. ``index`` is that of an output: the gradient that was recorded.

A line of either kind with ``"explain": true`` asks what the target did otherwise (:mod:`~precflow.agent.hypotheses.engine`).
"""

from __future__ import annotations

import ast
import functools
import json
import mmap
import os
import re
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch

from precflow.agent.failures import AgentError

_CUT = re.compile(r"\.\.\. #[0-9a-f]{8}\Z")  # the end of an argument text that capture has cut
_SUMMARY = re.compile(r"(list|tuple|dict|set|frozenset) of \d+\Z")  # of a container that capture did not write out
_MOVED_BYTES = 256 << 20  # of tensors that were moved again
_MAPPED = 64  # files that stay mapped; address space costs nothing, but each holds a file descriptor


MOST_BYTES = 8 << 30  # float64 tensors of one call, estimated; a larger call is left out
_NO_ROOM = re.compile(r"can't allocate memory: you tried to allocate (\d+) bytes")  # what torch says of the CPU's memory


class CannotCompute(Exception):  # noqa: N818  it says what is the matter, not that something went wrong
    """A call cannot be computed again; the message says why, as the end of a sentence."""


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error is about this machine's memory, and not about arguments that ask for more than any call gets."""
    asked = _NO_ROOM.search(str(error)) if isinstance(error, RuntimeError) else None
    return isinstance(error, MemoryError) or (asked is not None and int(asked.group(1)) <= MOST_BYTES)


class StoredTensor(NamedTuple):
    """A tensor in a shard of a dump.

    Attributes:
        index: Path in the call's arguments or outputs: ``0``, ``weight``, ``past.0``.
        dtype: torch's name of the element type, such as ``bfloat16``.
        shape: Sizes.
        file: Absolute path of the shard; ``None`` if the dump does not hold the tensor.
        begin: First byte in the file.
        bytes: Number of bytes.
        content: Content id; ``""`` if it is not known.
    """

    index: str  # type: ignore[assignment]  # hides tuple.index, which nobody calls on a tensor
    dtype: str
    shape: Tuple[int, ...]
    file: Optional[str]
    begin: int
    bytes: int
    content: str = ""


class SideTensors(NamedTuple):
    """What went into a call and what came out of it on one side."""

    inputs: Tuple[StoredTensor, ...]
    outputs: Tuple[StoredTensor, ...]


class Slot(NamedTuple):
    """A tensor that a function took or returned.

    Attributes:
        key: Names the tensor: it is the same for the function that made it and those that take it.
        dtype: torch's name of the element type.
        shape: Sizes.
    """

    key: str
    dtype: str
    shape: Tuple[int, ...]


class Function(NamedTuple):
    """A function that a module called.

    Attributes:
        call: The function as a call without tensors.
        inputs: By path in its arguments.
        outputs: By path in what it returned.
        is_whole: All tensors are there that its gradient depends on.
    """

    call: RecordedCall
    inputs: Mapping[str, Slot]
    outputs: Mapping[str, Slot]
    is_whole: bool


class Result(NamedTuple):
    """A gradient to compute.

    Attributes:
        index: Of the output that it was recorded as.
        of: Key of its tensor.
        call: Text that names it in what is written.
        named: Its index there.
    """

    index: str  # type: ignore[assignment]  # hides tuple.index, which nobody calls here
    of: str
    call: str
    named: str


class GradientGraph(NamedTuple):
    """What gives the gradients of a module call.

    Attributes:
        functions: In order of the forward.
        total: Key of a tensor -> the input that is its whole gradient.
        parts: Key of a tensor -> the inputs that modules inside add to its gradient.
        results: What has to come out.
    """

    functions: Tuple[Function, ...]
    total: Mapping[str, str]
    parts: Mapping[str, Tuple[str, ...]]
    results: Tuple[Result, ...]


class RecordedCall(NamedTuple):
    """One call.

    Attributes:
        call: Any text that tells it from the others.
        level: ``module``, ``api`` or ``operator``.
        operator: Canonical name; ``""`` for a module.
        class_name: Class of the module that ran (key ``class``).
        phase: ``forward``, ``backward``, ...
        arguments: Text of every argument that is no tensor, by name or position.
        sides: By name: ``reference``, ``target``.
        gradients: What gives the gradients, of the backward of a module; ``None`` for all others.
        explain: Wanted is not how wrong it is, but what it would be right with.
    """

    call: str
    level: str
    operator: str
    class_name: str
    phase: str
    arguments: Mapping[str, str]
    sides: Mapping[str, SideTensors]
    gradients: Optional[GradientGraph] = None
    explain: bool = False


def read_calls(path: str) -> Iterator[RecordedCall]:
    """Yield the calls of a file, one line at a time.

    Raises:
        AgentError: ``bad_request``: the file cannot be read, or a line is not a call; the message names the line.
    """
    try:
        with open(path, encoding="utf-8") as stream:
            for number, line in enumerate(stream, 1):
                try:
                    yield _parse_call(json.loads(line))
                except (AttributeError, KeyError, TypeError, ValueError) as error:  # noqa: PERF203  the message names the line
                    message = "line %d of %s is not a call: %s %s" % (number, path, type(error).__name__, error)
                    raise AgentError("bad_request", message, "the judge writes this file: run its stage again") from error
    except OSError as error:
        raise AgentError("bad_request", "cannot read %s: %s" % (path, error.strerror)) from error


def _parse_call(plain: Mapping[str, Any]) -> RecordedCall:
    return RecordedCall(
        call=str(plain["call"]),
        level=str(plain["level"]),
        operator=str(plain["operator"]),
        class_name=str(plain.get("class", "")),
        phase=str(plain.get("phase", "forward")),
        arguments={str(name): str(text) for name, text in plain.get("arguments", {}).items()},
        sides={
            str(side): SideTensors(parse_tensors(tensors["inputs"]), parse_tensors(tensors["outputs"]))
            for side, tensors in plain["sides"].items()
        },
        gradients=_parse_gradients(plain["gradients"]) if "gradients" in plain else None,
        explain=bool(plain.get("explain", False)),
    )


def _parse_gradients(plain: Mapping[str, Any]) -> GradientGraph:
    return GradientGraph(
        functions=tuple(
            Function(
                _parse_call({**each, "call": each["operator"], "sides": {}}),
                _parse_slots(each["inputs"]),
                _parse_slots(each["outputs"]),
                bool(each["is_whole"]),
            )
            for each in plain["functions"]
        ),
        total={str(key): str(name) for key, name in plain["total"].items()},
        parts={str(key): tuple(map(str, names)) for key, names in plain["parts"].items()},
        results=tuple(Result(*[str(each[name]) for name in ("index", "of", "call", "named")]) for each in plain["results"]),
    )


def _parse_slots(plain: Mapping[str, Any]) -> Mapping[str, Slot]:
    return {
        str(path): Slot(str(key), str(dtype), tuple(int(size) for size in shape)) for path, (key, dtype, shape) in plain.items()
    }


def parse_tensors(plain: Sequence[Mapping[str, Any]]) -> Tuple[StoredTensor, ...]:
    """Return where tensors lie, as a line says it."""
    return tuple(
        StoredTensor(
            index=str(tensor["index"]),
            dtype=str(tensor["dtype"]),
            shape=tuple(int(size) for size in tensor["shape"]),
            file=None if tensor.get("file") is None else str(tensor["file"]),
            begin=int(tensor.get("begin", 0)),
            bytes=int(tensor.get("bytes", 0)),
            content=str(tensor.get("content", "")),
        )
        for tensor in plain
    )


class TensorFiles:
    """Reads tensors from shards. Files are mapped, so a tensor costs no memory of its own until its values are read."""

    def __init__(self) -> None:
        self._maps: Dict[str, mmap.mmap] = {}
        self._moved: Dict[str, torch.Tensor] = {}
        self._moved_bytes = 0

    def read(self, stored: StoredTensor) -> torch.Tensor:
        """Return a tensor over the bytes of the file. Writing to it changes neither the file nor another reader's tensor.

        Raises:
            CannotCompute: It was not kept, or the file does not hold it.
        """
        if stored.file is None:
            moved = self._moved.get(stored.content)
            if moved is None:
                raise CannotCompute("tensor %s was not kept" % stored.index)
            return moved
        dtype = find_dtype(stored.dtype)
        count = 1
        for size in stored.shape:
            count *= size
        expected = count * _count_bytes(dtype)
        if expected != stored.bytes:
            raise CannotCompute("tensor %s has %d bytes; %d were expected" % (stored.index, stored.bytes, expected))
        if not count:
            return torch.empty(stored.shape, dtype=dtype)
        content = self._map(stored.file)
        if stored.begin < 0 or stored.begin + stored.bytes > len(content):
            raise CannotCompute("tensor %s lies outside of %s" % (stored.index, stored.file))
        return torch.frombuffer(content, dtype=dtype, count=count, offset=stored.begin).reshape(stored.shape)

    def remember(self, content: str, tensor: torch.Tensor) -> None:
        """Keep what movement made, for the calls that take it: under its content id, the latest 256 MB."""
        if content and content not in self._moved:
            self._moved[content] = tensor
            self._moved_bytes += tensor.numel() * tensor.element_size()
        while self._moved_bytes > _MOVED_BYTES:
            oldest = self._moved.pop(next(iter(self._moved)))
            self._moved_bytes -= oldest.numel() * oldest.element_size()

    def _map(self, path: str) -> mmap.mmap:
        content = self._maps.get(path)
        if content is None:
            if len(self._maps) >= _MAPPED:
                self._maps.pop(next(iter(self._maps)))  # tensors that still use it keep it alive
            try:
                with open(path, "rb") as file:
                    if not os.fstat(file.fileno()).st_size:
                        raise CannotCompute("%s is empty" % path)
                    content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            except OSError as error:
                raise CannotCompute("%s cannot be read: %s" % (path, error.strerror)) from error
            self._maps[path] = content
        return content


@functools.lru_cache(maxsize=None)
def _count_bytes(dtype: torch.dtype) -> int:
    """Return the bytes of an element."""
    return torch.empty((), dtype=dtype).element_size()


@functools.lru_cache(maxsize=256)
def find_dtype(name: str) -> torch.dtype:
    """Return torch's element type of a name.

    Raises:
        CannotCompute: This torch has none of that name.
    """
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise CannotCompute("element type %s is unknown to torch %s" % (name, torch.__version__))
    return dtype


# Argument texts. Capture writes the `repr` of a value; the reader below turns it back into the value without running anything.


def parse_argument(text: str) -> Any:
    """Return the value that an argument text stands for.

    Known are numbers, texts, ``None``, lists, tuples, dicts, slices, ``Ellipsis``, element types, layouts, memory formats,
    sizes and ranges. A device becomes ``torch.device("cpu")``: where a call ran does not change what it should compute.

    Raises:
        CannotCompute: The text was cut, or its value is not known.

    >>> parse_argument("(slice(None, -1, None), 0)"), parse_argument("torch.float16"), parse_argument("-inf")
    ((slice(None, -1, None), 0), torch.float16, -inf)
    """
    if _CUT.search(text):
        raise CannotCompute("the text of an argument was cut: %s" % text[:40])
    if _SUMMARY.match(text):
        raise CannotCompute("an argument is a container that was not written out: %s" % text)
    try:
        return _value_of(ast.parse(text, mode="eval").body, text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise CannotCompute("argument %s cannot be read" % _shorten(text)) from error


def _value_of(node: ast.AST, text: str) -> Any:  # noqa: PLR0911  one case for each form of a value
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, (ast.Tuple, ast.List)):
        values = [_value_of(elt, text) for elt in node.elts]
        return tuple(values) if isinstance(node, ast.Tuple) else values
    if isinstance(node, ast.Dict) and None not in node.keys:
        return {_value_of(key, text): _value_of(value, text) for key, value in zip(node.keys, node.values) if key is not None}
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = _value_of(node.operand, text)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):  # a complex number: (1+2j)
        left, right = _value_of(node.left, text), _value_of(node.right, text)
        return left + right if isinstance(node.op, ast.Add) else left - right
    if isinstance(node, ast.Name) and node.id in ("inf", "nan", "Ellipsis"):
        return Ellipsis if node.id == "Ellipsis" else float(node.id)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "torch":
        found = getattr(torch, node.attr, None)
        if isinstance(found, (torch.dtype, torch.layout, torch.memory_format)):
            return found
    if isinstance(node, ast.Call):
        return _call_of(node, text)
    raise CannotCompute("argument %s cannot be read" % _shorten(text))


def _call_of(node: ast.Call, text: str) -> Any:
    """Return the value of ``slice(...)``, ``range(...)``, ``torch.Size(...)`` or ``device(...)``."""
    name = ast.dump(node.func)
    if "'device'" in name:
        return torch.device("cpu")
    values: List[Any] = [_value_of(arg, text) for arg in node.args]
    if isinstance(node.func, ast.Name) and node.func.id in ("slice", "range") and not node.keywords:
        return slice(*values) if node.func.id == "slice" else range(*values)
    if "'Size'" in name and len(values) == 1:
        return torch.Size(values[0])
    raise CannotCompute("argument %s cannot be read" % _shorten(text))


def _shorten(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
