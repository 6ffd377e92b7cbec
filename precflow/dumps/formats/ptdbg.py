"""Dumps of ptdbg_ascend, the tool before msprobe: a ``.pkl`` that is lines of JSON, and a folder of ``.npy`` beside it.

    ["Torch_add_0_forward_input.0", 1, [], "torch.float32", [2, 3], [1.5, -0.5, 0.25]]       largest, smallest, mean
    ["Torch_add_0_forward_stack_info", [["train.py", "12", "forward", "x = x + y"]]]

Later versions put dots into the names: ``Torch.add.0.forward.input.0``. Operators are ``(outside)``, numbered by operator: such
a dump does not say which module calls them. ``module_dump(module, "attention")`` records a module by a name of the user's::

    ["attention_0_forward_input.0", ...]        call 0 of attention
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from precflow.agent import intake
from precflow.agent.capture.operator_names import canonical_name
from precflow.agent.contract import API, FORWARD, MODULE, OUTSIDE
from precflow.dumps.dtypes import NUMPY_DTYPES
from precflow.dumps.foreign import ForeignCall, ForeignDump, ForeignTensor, make_statistics
from precflow.dumps.formats import Format
from precflow.dumps.header import describe_error
from precflow.dumps.protocol import Dump
from precflow.dumps.records import Statistics
from precflow.dumps.tensor_files import find_file
from precflow.errors import DumpError

TOOL = "ptdbg_ascend"
LACKS = ("modules", "which tensors are weights", "random draws", "the device", "the environment", "losses")
_LARGEST = 1 << 31  # bytes of a file of lines
_HEAD = 4096
_STEP, _RANK = re.compile(r"step(\d+)"), re.compile(r"rank(\d+)")
_NAME = re.compile(
    r"(?P<kind>[A-Za-z]+)(?P<dot>[._])(?P<operator>.+?)(?P=dot)(?P<number>\d+)(?P=dot)(?P<phase>forward|backward)(?P=dot)"
    r"(?P<what>input|output|stack_info)(?:\.(?P<index>[\w.]+))?"
)
_KINDS = frozenset("Functional Tensor Torch VF NPU Aten Distributed Jit MindSpeed".split())  # of operators
_MODULE = re.compile(
    r"(?P<operator>.+)(?P<dot>[._])(?P<number>\d+)(?P=dot)(?P<phase>forward|backward)(?P=dot)"
    r"(?P<what>input|output|stack_info)(?:\.(?P<index>[\w.]+))?"
)
_DATA_FOLDERS = ("dump_tensor_data", "dump")


def list_files(path: Path) -> list[tuple[Path, int, int]]:
    """Return the ``.pkl`` files of a dump with their steps and ranks, in order of step and rank."""
    if path.is_file():
        return [(path, 0, 0)]
    found = []
    every = sorted(path.rglob("*.pkl"))
    others = {file.parent for file in every if _STACK not in file.stem}
    for file in every:
        inside = file.relative_to(path).parts[:-1]
        # Beside another file it has the lines of the source alone; in mode `api_stack` it is the only one, and has all.
        if len(inside) > _DEEPEST or (_STACK in file.stem and file.parent in others):
            continue
        numbers = [next((int(match[1]) for part in inside if (match := kind.fullmatch(part))), 0) for kind in (_STEP, _RANK)]
        found.append((file, numbers[0], numbers[1]))
    return sorted(found, key=lambda one: one[1:])


_STACK = "stack"
_DEEPEST = 4  # folders between a dump and its files: version, step, rank, process


def is_ptdbg(path: Path) -> bool:
    """Tell whether there is a dump of ptdbg_ascend at a path; of each file only the beginning is read."""
    try:
        return any(_begins_like_one(file) for file, _, _ in list_files(path))
    except (OSError, ValueError):
        return False


def _begins_like_one(file: Path) -> bool:
    if file.suffix != ".pkl":
        return False
    try:
        with intake.open_regular(file) as stream:
            line = stream.read(_HEAD).decode("utf-8", "replace").partition("\n")[0]
    except (OSError, ValueError):
        return False
    found = re.match(r'\["([^"]+)",', line)
    return found is not None and _parse_name(found[1]) is not None


def _parse_name(text: str) -> re.Match[str] | None:
    """Return the parts of a name; that of a module, which users choose, has no ``kind``."""
    match = _NAME.fullmatch(text)
    return match if match is not None and match["kind"] in _KINDS else _MODULE.fullmatch(text)


def open_ptdbg(path: Path, *, allow_unsealed: bool = False) -> Dump:
    """Open a dump of ptdbg_ascend: a file, or a folder with one file for each step and rank.

    Raises:
        DumpError: It cannot be read, or two files are of one step and rank.
    """
    del allow_unsealed  # no such dump says whether it has finished
    files = [one for one in list_files(path) if _begins_like_one(one[0])]
    several = [place for place, count in Counter(one[1:] for one in files).items() if count > 1]
    if several:
        step, rank = several[0]
        names = ", ".join(str(file) for file, *place in files if tuple(place) == several[0])
        raise DumpError(f"several files are of step {step} and rank {rank}: {names}", next_step="name one of them")
    calls, damage = list[ForeignCall](), list[str]()
    for file, step, rank in files:
        calls += _read_calls(file, step, rank, damage)
    if not calls:
        raise DumpError(f"{path} has no tensor that can be read", next_step="record it again")
    return ForeignDump(path, TOOL, calls, damage=damage, lacks=LACKS)


FORMAT = Format(TOOL, 20, is_ptdbg, open_ptdbg)


def _read_calls(file: Path, step: int, rank: int, damage: list[str]) -> list[ForeignCall]:
    try:
        lines = list(intake.parse_lines(intake.read_text(file, _LARGEST)))
    except (OSError, ValueError) as error:
        raise DumpError(
            f"{file} cannot be read: {describe_error(error)}", next_step="copy it again, or record it again"
        ) from error
    data = next(
        (folder for folder in (file.with_suffix(""), *(file.parent / name for name in _DATA_FOLDERS)) if folder.is_dir()), None
    )
    calls: dict[tuple[str, str], ForeignCall] = {}
    inputs: dict[tuple[str, str], list[ForeignTensor]] = {}
    outputs: dict[tuple[str, str], list[ForeignTensor]] = {}
    counts = Counter[str]()
    numbers: dict[str, int] = {}
    for place, line in lines:
        match = _parse_name(line[0]) if isinstance(line, list) and line and isinstance(line[0], str) else None
        if match is None:
            damage.append(f"{file}, line {place}: no line of {TOOL}: {str(line)[:120]}")
            continue
        kind = match.groupdict().get("kind")
        key = (f"{kind}.{match['operator']}.{match['number']}", match["phase"])
        operator = canonical_name(match["operator"]) if kind else match["operator"]
        if not kind:
            numbers[key[0]] = int(match["number"])
        elif key[0] not in numbers:  # canonical names join what torch, its tensors and its functions call alike
            numbers[key[0]] = counts[operator]
            counts[operator] += 1
        number = numbers[key[0]]
        made = ForeignCall(MODULE, operator, phase=match["phase"], call=number, step=step, rank=rank)
        if kind:
            made = replace(made, level=API, module=OUTSIDE, call=0, operator=operator, ordinal=number)
        call = calls.setdefault(key, made)
        if match["what"] == "stack_info":
            call.site = _describe_stack(line[1:])
            continue
        tensor = _read_tensor(line, match["index"] or "0", data, f"{file}, line {place}", damage)
        if tensor is not None:
            (inputs if match["what"] == "input" else outputs).setdefault(key, []).append(tensor)
    orders = {key: order for order, key in enumerate(calls)}
    for key, call in calls.items():
        call.inputs, call.outputs = inputs.get(key, ()), outputs.get(key, ())
        forward = orders.get((key[0], FORWARD))
        call.forward = (forward,) if call.phase != FORWARD and forward is not None else ()
    return list(calls.values())


def _read_tensor(line: list[Any], index: str, data: Path | None, where: str, damage: list[str]) -> ForeignTensor | None:
    """Return the tensor of a line; ``None`` for a number or a text, and for what cannot be read."""
    dtype = line[3] if len(line) > 3 else None
    if not isinstance(dtype, str) or not dtype.startswith("torch."):
        return None
    dtype, shape = dtype.removeprefix("torch."), line[4] if len(line) > 4 else None
    if dtype not in NUMPY_DTYPES or not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        damage.append(f"{where}: a tensor of type {dtype!r} and shape {str(shape)[:80]}")
        return None
    file = data / f"{line[0]}.npy" if data is not None else None
    if file is not None and (file.is_symlink() or Path(line[0]).name != line[0]):
        damage.append(f"{where}: {file.name} is a link or leads out of the dump")
        file = None
    kept = find_file(file, dtype) if file is not None and file.is_file() else None
    return ForeignTensor(index, dtype, tuple(shape), _read_statistics(dtype, shape, line[5:6], where, damage), file=kept)


def _read_statistics(dtype: str, shape: list[int], given: list[Any], where: str, damage: list[str]) -> Statistics | None:
    numbers = [*(given[0] if given and isinstance(given[0], list) else []), None, None, None][:3]
    if not all(number is None or isinstance(number, (int, float)) for number in numbers):
        damage.append(f"{where}: its statistics are no numbers: {str(numbers)[:80]}")
        return None
    try:
        return make_statistics(dtype, shape, smallest=numbers[1], largest=numbers[0], mean=numbers[2])
    except (ValueError, OverflowError):
        damage.append(f"{where}: its statistics leave the range of numbers: {str(numbers)[:80]}")
        return None


def _describe_stack(stack: list[Any]) -> str:
    frames = stack[0] if stack and isinstance(stack[0], list) else []
    shown = [
        f"{Path(str(frame[0])).name}:{frame[1]} in {frame[2]}"
        for frame in frames
        if isinstance(frame, list) and len(frame) > 2 and "/torch/" not in str(frame[0]) and "ptdbg_ascend" not in str(frame[0])
    ]
    return " <- ".join(shown[:6])
