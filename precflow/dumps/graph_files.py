"""Graph files of an Ascend model: of which original operators each one that the device runs was made.

Two kinds are read where they lie beside a dump: the text that the runtime writes (``ge_proto_*_Build.txt``, ``.pbtxt``; the
text form of protobuf), and the JSON that ``atc --mode=1`` makes of an om model. Both say the same in the same words::

    graph { op { name: "conv1conv1_relu"
                 attr { key: "_datadump_original_op_names" value { list { s: "conv1" s: "bn1" s: "conv1_relu" } } }
                 output_desc { attr { key: "_datadump_origin_name" value { s: "conv1_relu" } }
                               attr { key: "_datadump_origin_output_index" value { i: 0 } } } } }

The output of ``conv1conv1_relu`` is that of ``conv1_relu``; ``conv1`` and ``bn1`` are computed inside of it, and seen nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from precflow.agent import intake
from precflow.errors import DumpError

_NAMES = ("ge_proto_*.txt", "*.pbtxt", "*.json")
_LAST_STAGE = "_Build.txt"  # the runtime writes the graph after every stage; the device runs what the last one made
_TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|#[^\n]*|[{}<>:;,\[\]]|[^\s{}<>:;,\[\]"#]+')
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|(.))", re.DOTALL)
_ESCAPED = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}
_OPENING, _CLOSING = frozenset("{<"), frozenset("}>")
_KEPT = frozenset({"graph", "op", "name", "attr", "key", "value", "list", "s", "i", "output_desc"})  # the rest may be huge
_MOST = 64  # graph files of one dump

Message = dict[str, Any]


@dataclass(frozen=True)
class FusedOperator:
    """What a graph says about one operator that the device runs.

    Attributes:
        originals: Names of the operators that it was made of, in order.
        outputs: Number of its output -> name of the original operator whose output it is, and the number there.
    """

    originals: tuple[str, ...] = ()
    outputs: Mapping[int, tuple[str, int]] = field(default_factory=dict)


def spell(name: str) -> str:
    """Return a name as every tool can write it into the name of a file.

    >>> spell("encoder/layers.0/relu")
    'encoder_layers_0_relu'
    """
    return re.sub(r"[^A-Za-z0-9]", "_", name)


def read_graphs(folder: Path) -> dict[str, FusedOperator]:
    """Return :func:`spell` of an operator's name -> what the graph files in a folder say about it; nothing without such files.

    Raises:
        DumpError: One of them is damaged, or two say different things about one operator.
    """
    found = dict[str, FusedOperator]()
    for path in _list_graphs(folder):
        for name, operator in _read_graph(path):
            if found.setdefault(spell(name), operator) != operator:
                raise DumpError(
                    f"{path} says something else about operator {name} than another graph file beside it",
                    next_step="leave only the graph file of the model that was run",
                )
    return found


def _list_graphs(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    files = {file for pattern in _NAMES for file in folder.glob(pattern) if file.is_file() and not file.is_symlink()}
    last = {file for file in files if file.name.endswith(_LAST_STAGE)}
    return sorted(last or files)[:_MOST]


def _read_graph(path: Path) -> Iterator[tuple[str, FusedOperator]]:
    """Yield name and origin of each operator in a file; nothing for a JSON file of another kind."""
    try:
        text = intake.read_text(path)
        tree = intake.parse_json(text) if path.suffix == ".json" else _parse_text(text)
        graphs = _list(tree.get("graph")) if isinstance(tree, dict) else []
        for operator in (operator for graph in graphs for operator in _list(_get(graph, "op"))):
            name = _get(operator, "name")
            if isinstance(name, str):
                yield name, _describe(operator)
    except OSError as error:
        raise DumpError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise DumpError(
            f"{path} is damaged, or no graph file: {error}",
            next_step="copy it again, or move it away: without it, operators go by the names that their dump has",
        ) from error


def _describe(operator: Any) -> FusedOperator:
    names = _list(_get(_get(_attributes(operator).get("_datadump_original_op_names"), "list"), "s"))
    outputs = {}
    for number, description in enumerate(_list(_get(operator, "output_desc"))):
        attributes = _attributes(description)
        origin = _get(attributes.get("_datadump_origin_name"), "s")
        index = _get(attributes.get("_datadump_origin_output_index"), "i")
        if isinstance(origin, str) and origin:
            outputs[number] = (origin, _read_number(index))
    return FusedOperator(tuple(name for name in names if isinstance(name, str) and name), outputs)


def _attributes(message: Any) -> dict[str, Any]:
    """Return key -> value of the attributes of a message."""
    pairs = [(_get(one, "key"), _get(one, "value")) for one in _list(_get(message, "attr"))]
    return {key: value for key, value in pairs if isinstance(key, str)}


def _get(message: Any, name: str) -> Any:
    return message.get(name) if isinstance(message, dict) else None


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _read_number(value: Any) -> int:
    if isinstance(value, str) and value.isdigit():
        value = int(value)
    if isinstance(value, int) and 0 <= value < 1 << 20:
        return value
    if value is None:  # protobuf leaves zeros out
        return 0
    raise ValueError(f"an output is number {value!r}")


def _parse_text(text: str) -> Message:  # noqa: C901  one pass over the tokens, a branch for each kind
    """Return the text form of a protobuf message as nested dictionaries; a field that comes several times is a list.

    Fields that nobody asks for here are left out: a graph may hold all weights.

    Raises:
        ValueError: It is not such a text, or is nested too deeply.
    """
    top: Message = {}
    opened: list[Message | None] = [top]  # None stands for a message that is left out
    name, in_list = "", False
    for match in _TOKEN.finditer(text):
        part, here = match.group(), opened[-1]
        if part[0] in "#,;:":
            continue
        if part in {"[", "]"}:
            in_list = part == "["
            name = name if in_list else ""
        elif part in _OPENING:
            inner: Message | None = {} if here is not None and name in _KEPT else None
            if here is not None and inner is not None:
                _add(here, name, inner)
            opened.append(inner)
            name = ""
        elif part in _CLOSING:
            opened.pop()
        elif not name:
            name = part
        else:
            if here is not None and name in _KEPT:
                _add(here, name, _unquote(part) if part[0] == '"' else part)
            name = name if in_list else ""
        if not 0 < len(opened) <= intake.DEEPEST or name[:1] == '"':
            raise ValueError(f"unexpected {part[:20]} at character {match.start()}")
    if len(opened) > 1 or name:
        raise ValueError("it is cut off")
    return top


def _add(message: Message, name: str, value: Any) -> None:
    if name not in message:
        message[name] = value
    elif isinstance(message[name], list):
        message[name].append(value)
    else:
        message[name] = [message[name], value]


def _unquote(token: str) -> str:
    r"""Return the text between quotes: bytes of UTF-8, with the escapes of C.

    >>> _unquote(r'"a\"b\345\261\202"')
    'a"b层'
    """
    return _ESCAPE.sub(_unescape, token[1:-1].encode()).decode("utf-8", "replace")


def _unescape(found: re.Match[bytes]) -> bytes:
    digits = found[1]
    return bytes([int(digits, 8) & 0xFF]) if digits else _ESCAPED.get(found[2], found[2])
