"""Dumps of SGLang: of its ``dumper``, and of its option ``--debug-tensor-dump-output-folder``.

The dumper writes a file for each tensor, whose name says what it is; older versions count passes from 1, newer ones steps from
0, and put ``{"value": tensor, "meta": {...}}`` into the file::

    forward_pass_id=1___rank=0___name=layer_start__hidden_states___dump_index=3___layer_id=0.pt
    step=0___rank=0___dump_index=3___name=non_intrusive__model.layers.0.mlp.output___recompute_status=disabled.pt

The option writes a file for each pass of a process: the outputs of modules, and what the pass was given::

    TP0_PP0_Rank0_pid4711/Pass00000.pt
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from precflow.agent.contract import BACKWARD, FORWARD, GRADIENT, MODULE
from precflow.dumps.dtypes import name_of
from precflow.dumps.foreign import ForeignCall, ForeignDump, ForeignTensor
from precflow.dumps.formats import Format
from precflow.dumps.protocol import Dump
from precflow.dumps.tensor_files import TensorFile, list_members
from precflow.errors import DumpError

TOOL = "SGLang's dumper"
LACKS = (
    "which tensors are weights, unless they were dumped as such",
    "random draws",
    "the device",
    "the environment",
    "losses",
)
_MARK, _OF_HOOKS, _PARAMETER, _GRADIENT = "___", "non_intrusive__", "param__", "grad__"
_PROCESS, _PASS = re.compile(r"TP\d+_PP\d+_Rank(?P<rank>\d+)_pid\d+"), re.compile(r"Pass(?P<step>\d+)\.pt")
_GIVEN = re.compile(r"(?:.*\.)?forward_batch_info\.(?P<name>\w+)")
_HOOK = re.compile(r"(?P<module>.*?)\.?(?P<role>inputs|output)(?:\.(?P<index>.+))?")
_TAGS_OF_ALL = frozenset({"step", "forward_pass_id", "rank", "name", "dump_index", "recompute_status"})
_NUMBER = re.compile(r"\d{1,12}")


class _File(NamedTuple):
    """A file of the dumper, as its name describes it."""

    path: Path
    step: int
    rank: int
    number: int
    name: str
    tags: tuple[str, ...]


def is_sglang(path: Path) -> bool:
    """Tell whether there is such a dump at a path."""
    try:
        return path.is_dir() and (next(_list_passes(path), None) is not None or next(_list_files(path), None) is not None)
    except OSError:
        return False


def open_sglang(path: Path, *, allow_unsealed: bool = False) -> Dump:
    """Open such a dump: the folder of one run, or of one process.

    Raises:
        DumpError: No tensor can be read.
    """
    del allow_unsealed  # it does not say whether it has finished
    reader = _Reader()
    for process, step, file in sorted(_list_passes(path), key=lambda one: (one[0], one[1], one[2].name)):
        reader.read_pass(file, step, process)
    for found in sorted(_list_files(path), key=lambda one: (one.rank, one.step, one.number)):
        reader.read_file(found)
    if not reader.calls:
        raise DumpError(
            f"{path} has no tensor that can be read" + (f": {reader.damage[0]}" if reader.damage else ""),
            next_step="record it again: DUMPER_ENABLE=1, or --debug-tensor-dump-output-folder",
        )
    return ForeignDump(
        path, TOOL, reader.calls, weights=reader.weights, inputs=reader.inputs, damage=reader.damage, lacks=LACKS
    )


FORMAT = Format(TOOL, 40, is_sglang, open_sglang)


def _list_passes(path: Path) -> Iterator[tuple[int, int, Path]]:
    """Yield rank, step and file of each pass."""
    folders = [path] if _PROCESS.fullmatch(path.name) else sorted(each for each in path.iterdir() if each.is_dir())
    for folder in folders:
        process = _PROCESS.fullmatch(folder.name)
        for file in folder.iterdir() if process else ():
            if (found := _PASS.fullmatch(file.name)) and process:
                yield int(process["rank"]), int(found["step"]), file


def _list_files(path: Path) -> Iterator[_File]:
    for file in path.iterdir():
        tags = dict(tag.partition("=")[::2] for tag in file.name.removesuffix(".pt").split(_MARK))
        numbers = [tags.get("step", tags.get("forward_pass_id", "")), tags.get("rank", ""), tags.get("dump_index", "")]
        if file.suffix == ".pt" and tags.get("name") and all(map(_NUMBER.fullmatch, numbers)):
            step, rank, index = map(int, numbers)
            own = tuple(f"{key}={value}" for key, value in sorted(tags.items()) if key not in _TAGS_OF_ALL)
            yield _File(file, step if "step" in tags else max(step - 1, 0), rank, index, tags["name"], own)


class _Reader:
    """Reads files in the order in which they were written."""

    def __init__(self) -> None:
        self.calls: list[ForeignCall] = []
        self.weights: dict[tuple[int, int], dict[str, ForeignTensor]] = {}
        self.inputs: dict[str, ForeignTensor] = {}
        self.damage: list[str] = []
        self._counts = Counter[tuple[object, ...]]()
        self._given: dict[tuple[int, int, str], list[ForeignTensor]] = {}  # of modules whose output is still to come

    def read_pass(self, file: Path, step: int, rank: int) -> None:
        """Read what one pass of a process has written."""
        for member, tensor in self._read_tensors(file, "0").items():
            if given := _GIVEN.fullmatch(member):
                self.inputs[f"{f'rank{rank}.' if rank else ''}step{step}.{given['name']}"] = tensor
            else:
                self.calls.append(ForeignCall(MODULE, member, step=step, rank=rank, outputs=(tensor,)))

    def read_file(self, file: _File) -> None:
        """Read one file of the dumper."""
        members = self._read_tensors(file.path, "")
        for member, tensor in members.items():
            index = member.removeprefix("value").removeprefix(".") or "0"
            self._add(file, replace(tensor, index=index))

    def _add(self, file: _File, tensor: ForeignTensor) -> None:
        name = file.name.removeprefix(_GRADIENT)
        is_gradient = name != file.name
        if name.startswith(_PARAMETER):
            parameter = name.removeprefix(_PARAMETER)
            module, _, leaf = parameter.rpartition(".")
            if is_gradient:
                made = (replace(tensor, index=leaf),)
                self.calls.append(ForeignCall(MODULE, module, phase=GRADIENT, step=file.step, rank=file.rank, outputs=made))
            else:
                self.weights.setdefault((file.rank, file.step), {})[parameter] = tensor
            return
        name = name.removeprefix(_OF_HOOKS)
        hooked = _HOOK.fullmatch(name) if file.name.startswith(_OF_HOOKS) else None
        if hooked is None:  # by the name that a program gave it, in front of which stands what it was told of the place
            name = ".".join((*file.tags, name)).replace("=", ".")
            phase = BACKWARD if is_gradient else FORWARD
            number = self._count(name, phase, file, tensor.index)
            self.calls.append(
                ForeignCall(MODULE, name, phase=phase, call=number, step=file.step, rank=file.rank, outputs=(tensor,))
            )
            return
        place = (file.rank, file.step, hooked["module"])
        tensor = replace(tensor, index=hooked["index"] or tensor.index)
        if hooked["role"] == "inputs":
            self._given.setdefault(place, []).append(tensor)
            return
        module, given = hooked["module"], self._given.pop(place, [])
        number = self._count(module, FORWARD, file, tensor.index)
        call = ForeignCall(MODULE, module, call=number, step=file.step, rank=file.rank, inputs=given, outputs=(tensor,))
        self.calls.append(call)

    def _count(self, name: str, phase: str, file: _File, index: str) -> int:
        """Return how often this output was dumped before in its step."""
        key = (name, phase, file.step, file.rank, index)
        self._counts[key] += 1
        return self._counts[key] - 1

    def _read_tensors(self, path: Path, alone: str) -> Mapping[str, ForeignTensor]:
        """Return the tensors of a file by their places in what was saved; notes what cannot be read."""
        if path.is_symlink():
            self.damage.append(f"{path} is a link, which may lead out of the dump")
            return {}
        found = {}
        try:
            for member in list_members(path):
                kept = TensorFile(path, member)
                array = kept.read()
                found[member] = ForeignTensor(alone, name_of(array.dtype), array.shape, file=kept)
        except DumpError as error:
            self.damage.append(error.message)
        return found
