"""Dumps of msprobe (PyPI ``mindstudio-probe``), which verl and other training frameworks write too.

A dump is a folder for each step and process::

    step0/rank0/dump.json          calls in order of completion, with the statistics of their tensors
    step0/rank0/construct.json     call -> the call around it, in the order in which calls began; those too that were not kept
    step0/rank0/stack.json         call -> the lines of the source that called it
    step0/rank0/dump_tensor_data/  a file for each tensor, where tensors were kept
    step0/rank0/debug.json         tensors that a program saved one by one, by its own names

A process without a rank has a folder ``proc<pid>``. Names become ours: ``Functional.linear.3.forward`` inside of
``Module.layers.0.fc1.Linear.forward.0`` is ``layers.0.fc1/linear.0/forward``. A dump of level L1 does not say which module
calls an operator: then all are ``(outside)``, numbered by operator.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from precflow.agent import intake
from precflow.agent.capture.operator_names import canonical_name
from precflow.agent.contract import API, BACKWARD, FORWARD, GRADIENT, MODULE, OPTIMIZER, OUTSIDE, name_keys
from precflow.dumps.argument_names import name_arguments
from precflow.dumps.dtypes import NUMPY_DTYPES
from precflow.dumps.foreign import ForeignCall, ForeignDump, ForeignTensor, make_statistics
from precflow.dumps.formats import Format
from precflow.dumps.header import describe_error
from precflow.dumps.protocol import Dump
from precflow.dumps.records import Statistics
from precflow.dumps.tensor_files import ENDINGS, TensorFile, find_file
from precflow.errors import DumpError

TOOL = "msprobe"
DUMP, SAVED, PARENTS, STACKS, TENSORS = "dump.json", "debug.json", "construct.json", "stack.json", "dump_tensor_data"
LACKS = ("the model as a whole", "random draws", "the device", "the environment", "losses")
_HEAD = 4096  # bytes of dump.json in which its first keys stand
_LARGEST = 1 << 31  # bytes of a JSON file: 200 000 calls take 150 MB
_STEP, _RANK = re.compile(r"step(\d+)"), re.compile(r"rank(\d+)")
_CALL = re.compile(r"(?P<kind>[A-Za-z]+)\.(?P<operator>.+)\.(?P<number>\d+)\.(?P<phase>forward|backward)")
_MODULE = re.compile(
    r"(?:Module|Cell)\.(?P<path>.+)\.(?P<owner>[^.]+)\.(?:(?P<phase>forward|backward)\.(?P<call>\d+)|parameters_grad(?:\.(?P<times>\d+))?)"
)
_CHUNK = re.compile(r"(\d+)\.(?=\D)")  # number of a model in a list of models, such as the parts of a pipeline
_FRAME = re.compile(r"File (?P<path>.+), line (?P<line>\d+), in (?P<function>[^,]+),")
_OWN_FRAMES = ("/msprobe/", "/torch/nn/modules/module.py", "/torch/utils/", "/torch/_")
_OF_OPTIMIZER = ("/torch/optim/", "/torch/nn/utils/clip_grad.py", "/apex/optimizers/")
_INSIDE_OPTIMIZER = ("optimizer", "clip_grad")
_OPTIMIZER_SITE = "(optimizer)"
_WRAPPERS = frozenset(["_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"])
_SAVED_NAME = re.compile(r"(?P<name>.+)\.(?P<number>\d+)\.debug")
_GRADIENT_SUFFIX = "_grad"
_HEX = re.compile(r"(0x)?[0-9a-f]{8,32}")
_DEEPEST = 64  # of nested values, sizes of a shape, and calls around a call
_FRAMES = 6  # of a place in the source
# What MindSpore calls otherwise than torch: parameters of its cells, operators of its functions, and its primitives.
_MINDSPORE_PARAMETERS = {
    "gamma": "weight",
    "beta": "bias",
    "embedding_table": "weight",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}
_MINDSPORE_OPERATORS = {
    "dense": "linear",
    "BatchMatMul": "matmul",
    "MatMul": "matmul",
    "GeLU": "gelu",
    "ReLU": "relu",
    "SiLU": "silu",
    "ReduceMean": "mean",
    "ReduceSum": "sum",
}
# Positions of parameters among the arguments of operators, for dumps that do not say which tensors are parameters.
_PARAMETERS = {
    "linear": (1, 2),
    "bilinear": (2, 3),
    "embedding": (1,),
    "embedding_bag": (1,),
    "layer_norm": (2, 3),
    "rms_norm": (2,),
    "group_norm": (2, 3),
    "batch_norm": (3, 4),
    "instance_norm": (3, 4),
    **{f"conv{transposed}{size}d": (1, 2) for transposed in ("", "_transpose") for size in (1, 2, 3)},
}


class Folder(NamedTuple):
    """The folder of one step of one process."""

    path: Path
    step: int
    rank: int


def open_msprobe(path: Path, *, allow_unsealed: bool = False) -> Dump:
    """Open a dump of msprobe: of one step of a process, of one step, or of a whole run.

    Raises:
        DumpError: It cannot be read, or a step has several processes without a rank.
    """
    del allow_unsealed  # msprobe does not say whether it has finished
    found = [_read_folder(folder) for folder in list_folders(path)]
    chunks = {chunk for each in found for chunk in each.chunks}
    if len(chunks) == 1:  # one model in a list of one: its number is no part of a name
        for each in found:
            each.drop_chunks()
    return ForeignDump(
        path,
        TOOL,
        [call for each in found for call in (*each.calls, *_list_updates(each, found))],
        weights={(each.folder.rank, each.folder.step): each.weights for each in found},
        damage=[problem for each in found for problem in each.damage],
        lacks=LACKS,
    )


def is_msprobe(path: Path) -> bool:
    """Tell whether there is a dump of msprobe at a path."""
    try:
        return any(_is_folder(each.path) for each in list_folders(path))
    except (DumpError, OSError, ValueError):
        return _has_steps(path)


FORMAT = Format("msprobe", -10, is_msprobe, open_msprobe)


def list_folders(path: Path) -> list[Folder]:
    """Return the folders of steps and processes below a path, in order of step and rank.

    The steps of a whole run keep their numbers; a single step is step 0, so that it can be compared with another one.

    Raises:
        DumpError: There is none, or a step has several processes without a rank.
    """
    if path.is_file() and path.name in {DUMP, SAVED}:
        path = path.parent
    if (path / DUMP).is_file() or (path / SAVED).is_file():
        return [Folder(path, 0, 0)]
    if processes := _list_processes(path):
        return [Folder(folder, 0, rank) for rank, folder in processes]
    steps = sorted((int(match[1]), each) for each in _list(path) if (match := _STEP.fullmatch(each.name)))
    found = [Folder(folder, step, rank) for step, each in steps for rank, folder in _list_processes(each)]
    if not found:
        raise DumpError(f"there is no dump of msprobe at {path}", next_step=f"give the folder with step0/, or one with {DUMP}")
    return found


def _has_steps(path: Path) -> bool:
    """Tell whether a folder looks like msprobe's though it cannot be read: its error says more than another format's."""
    try:
        return any(each.is_file() for each in path.glob(f"step*/proc*/{DUMP}")) or any(
            _is_folder(each.parent) for each in path.glob(f"step*/rank*/{DUMP}")
        )
    except (OSError, ValueError):
        return False


def _list(path: Path) -> list[Path]:
    try:
        return sorted(each for each in path.iterdir() if each.is_dir())
    except OSError:
        return []


def _list_processes(step: Path) -> list[tuple[int, Path]]:
    folders = [each for each in _list(step) if (each / DUMP).is_file() or (each / SAVED).is_file()]
    ranks = sorted((int(match[1]), each) for each in folders if (match := _RANK.fullmatch(each.name)))
    others = [each for each in folders if re.fullmatch(r"proc\d+", each.name)]
    if len(others) > 1 or (ranks and others):
        names = ", ".join(each.name for each in (*(folder for _, folder in ranks), *others))
        raise DumpError(
            f"{step} has several processes that do not say their rank ({names}): two runs wrote into one folder",
            next_step=f"name one of them ({others[0]}), or move the folders of the other run away",
        )
    return ranks or [(0, each) for each in others]


def _is_folder(path: Path) -> bool:
    """Tell whether a folder has a ``dump.json`` or ``debug.json`` that msprobe wrote; only its beginning is read."""
    for name in (DUMP, SAVED):
        try:
            with intake.open_regular(path / name) as file:
                head = file.read(_HEAD).decode("utf-8", "replace")
        except (OSError, ValueError):
            continue
        if '"task"' in head and '"level"' in head:
            return True
    return False


def _list_updates(step: _Read, every: Sequence[_Read]) -> list[ForeignCall]:
    """Return what the optimizer left of each parameter in a step: what the next step begins with, if that was kept too."""
    after = next((each for each in every if each.folder[1:] == (step.folder.step + 1, step.folder.rank)), None)
    calls = list[ForeignCall]()
    if after is None:
        return calls
    for call in step.calls:
        if call.phase != GRADIENT or call.call or not call.outputs:
            continue
        weight = after.weights.get(f"{call.module}.{call.outputs[0].index}")
        if weight is not None:
            calls.append(replace(call, phase=OPTIMIZER, outputs=(replace(weight, index=call.outputs[0].index),)))
    return calls


@dataclass
class _Read:
    """What was read of one folder."""

    folder: Folder
    calls: list[ForeignCall]
    weights: dict[str, ForeignTensor]
    damage: list[str]
    chunks: set[str]

    def drop_chunks(self) -> None:
        """Drop the number of the one model from the names of modules and weights."""
        for call in self.calls:
            call.module = _CHUNK.sub("", call.module, count=1) if call.module != OUTSIDE else OUTSIDE
        self.weights = {_CHUNK.sub("", name, count=1): tensor for name, tensor in self.weights.items()}


class _Place(NamedTuple):
    """Where an operator runs: the module call around it, and how often the operator ran in that before."""

    module: str
    call: int
    operator: str
    ordinal: int


def _read_folder(folder: Folder) -> _Read:
    """Return the calls of one step of one process.

    Raises:
        DumpError: Its files are damaged, or no call was recorded.
    """
    found = _Read(folder, [], {}, [], set())
    if (folder.path / SAVED).is_file() and not (folder.path / DUMP).is_file():
        _read_saved(folder, found)
    else:
        _Reader(folder, found).read()
    if not found.calls:
        raise DumpError(
            f"{folder.path} has no tensor: its task was `structure`, or its program was stopped before it wrote any",
            next_step="record it again, with debugger.stop() and debugger.step() after each step",
        )
    return found


def _read_map(path: Path, *, required: bool = True) -> dict[str, Any]:
    """Return a JSON file; an empty map if it is not there and need not be.

    Raises:
        DumpError: It is damaged.
    """
    if not required and not path.is_file():
        return {}
    try:
        plain = intake.read_json(path, _LARGEST)
    except (OSError, ValueError) as error:
        raise DumpError(
            f"{path} cannot be read: {describe_error(error)}", next_step="copy it again, or record it again"
        ) from error
    if not isinstance(plain, dict):
        raise DumpError(f"{path} is a {type(plain).__name__}, expected a map")
    return plain


class _Reader:
    """Reads ``dump.json`` and what lies beside it.

    Args:
        folder: The folder.
        found: Filled with what is read.
    """

    def __init__(self, folder: Folder, found: _Read) -> None:
        self._folder = folder
        self._found = found
        self._tensors = _TensorReader(folder.path, found.damage)
        plain = _read_map(folder.path / DUMP)
        data = plain.get("data")
        if not isinstance(data, dict):
            raise DumpError(f"{folder.path / DUMP} has no map `data`", next_step="copy it again, or record it again")
        self._data: dict[str, Any] = data
        self._is_mindspore = plain.get("framework") == "mindspore"
        self._parents = _read_map(folder.path / PARENTS, required=False)
        self._sites = _read_sites(folder.path / STACKS)
        self._paths = [match["path"] for name in (*self._data, *self._parents) if (match := _MODULE.fullmatch(name))]
        self._is_wrapped = bool(self._paths) and all(
            f"{_CHUNK.sub('', path, count=1)}.".startswith("module.") for path in self._paths
        )
        self._places = self._place_operators()
        self._orders: dict[str, int] = {}  # name of a forward call -> its number in the step
        self._given: dict[str, list[ForeignTensor]] = {}  # name of an operator's forward call -> its inputs

    def read(self) -> None:
        """Read all calls."""
        for name, values in self._data.items():
            if not isinstance(values, dict):
                self._found.damage.append(f"{self._folder.path / DUMP}: {name} is a {type(values).__name__}, expected a map")
            elif match := _MODULE.fullmatch(name):
                self._read_module(name, match, values)
            elif match := _CALL.fullmatch(name):
                self._read_operator(name, match, values)
            else:
                self._found.damage.append(f"{self._folder.path / DUMP} has an entry of an unknown kind: {name[:200]}")

    def _place_operators(self) -> dict[str, _Place]:
        """Return ``KIND.OPERATOR.NUMBER`` -> where it runs.

        Operators are counted in the order in which they began, those too of which nothing was kept.
        """
        counts = Counter[tuple[str, int, str]]()
        places = {}
        for name in dict.fromkeys((*self._parents, *self._data)):
            match = _CALL.fullmatch(name)
            if match is None or match["phase"] != FORWARD or name.startswith(("Module.", "Cell.")):
                continue
            module, call = self._find_module(name)
            operator = _name_operator(match)
            ordinal = counts[module, call, operator]
            counts[module, call, operator] += 1
            places[name.removesuffix(f".{FORWARD}")] = _Place(module, call, operator, ordinal)
        return places

    def _find_module(self, name: str) -> tuple[str, int]:
        """Return the module call around an operator."""
        for _ in range(_DEEPEST):
            name = self._find_parent(name)
            if not name:
                break
            if match := _MODULE.fullmatch(name):
                return self._name_module(match["path"]), int(match["call"] or 0)
        return OUTSIDE, 0

    def _find_parent(self, name: str) -> str:
        """Return the call around another one, which some frameworks put into a list with more; ``""`` if there is none."""
        parent = self._parents.get(name)
        parent = parent[0] if isinstance(parent, list) and parent else parent
        return parent if isinstance(parent, str) else ""

    def _name_module(self, path: str) -> str:
        """Return the name of a module without wrappers, which leave no trace in ours."""
        chunk = _CHUNK.match(path)
        number = chunk[0] if chunk else ""
        if number:
            self._found.chunks.add(number)
        parts = path[len(number) :].split(".")
        while self._is_wrapped and parts[:1] == ["module"]:
            parts = parts[1:]
        return number + ".".join(part for part in parts if part not in _WRAPPERS)

    def _name_parameter(self, name: str) -> str:
        """Return torch's name of a parameter: MindSpore calls those of norms and embeddings otherwise, and writes paths."""
        if not self._is_mindspore:
            return name
        last = name.rpartition(".")[2]
        return _MINDSPORE_PARAMETERS.get(last, last)

    def _is_inside_optimizer(self, name: str) -> bool:
        return self._find_parent(name) in _INSIDE_OPTIMIZER or self._sites.get(name, "") == _OPTIMIZER_SITE

    def _read_module(self, name: str, match: re.Match[str], values: Mapping[str, Any]) -> None:
        module, folder = self._name_module(match["path"]), self._folder
        whose = ForeignCall(MODULE, module, class_name=match["owner"], step=folder.step, rank=folder.rank)
        if match["phase"] is None:  # the gradients of its parameters
            for parameter, tensor in values.items():
                given = tensor[0] if isinstance(tensor, list) and tensor else tensor
                read = self._tensors.read_leaf(self._name_parameter(parameter), given, name)
                if read is not None:
                    call = replace(whose, phase=GRADIENT, call=int(match["times"] or 0), outputs=(read,))
                    self._found.calls.append(call)
            return
        phase, number = match["phase"], int(match["call"])
        inputs, outputs, arguments = self._tensors.read_call(values, name)
        forward = self._orders.get(name.replace(f".{BACKWARD}.", f".{FORWARD}.")) if phase == BACKWARD else None
        if phase == FORWARD:
            self._orders[name] = len(self._found.calls)
            self._note_weights(module, number, values.get("parameters"), name)
        self._found.calls.append(
            replace(
                whose,
                phase=phase,
                call=number,
                site=self._sites.get(name, ""),
                arguments=arguments,
                inputs=inputs,
                outputs=outputs,
                forward=() if forward is None else (forward,),
            )
        )

    def _note_weights(self, module: str, call: int, parameters: Any, name: str) -> None:
        """Note the parameters of a module as they were when it was called first."""
        if call or not isinstance(parameters, dict):
            return
        for parameter, tensor in parameters.items():
            given = tensor[0] if isinstance(tensor, list) and tensor else tensor
            own = self._name_parameter(parameter)
            read = self._tensors.read_leaf(own, given, name) if given is not None else None
            if read is not None:
                self._found.weights.setdefault(f"{module}.{own}", read)

    def _read_operator(self, name: str, match: re.Match[str], values: Mapping[str, Any]) -> None:
        forward_name = name if match["phase"] == FORWARD else f"{name.removesuffix(BACKWARD)}{FORWARD}"
        if self._is_inside_optimizer(forward_name):
            return
        base = name.rpartition(".")[0]
        operator = _name_operator(match)
        place = self._places.get(base) or _Place(OUTSIDE, 0, operator, int(match["number"]))
        inputs, outputs, arguments = self._tensors.read_call(values, name)
        is_forward = match["phase"] == FORWARD
        if is_forward:
            self._orders[name] = len(self._found.calls)
            inputs = self._name_parameters(place, inputs)
            self._given[name] = inputs
        else:  # a gradient is made of what arrives, and of what the forward was given
            inputs = [*inputs, *(replace(each, index=f"forward.{each.index}") for each in self._given.get(forward_name, ()))]
        forward = None if is_forward else self._orders.get(forward_name)
        self._found.calls.append(
            ForeignCall(
                API,
                place.module,
                phase=match["phase"],
                call=place.call,
                operator=place.operator,
                ordinal=place.ordinal,
                step=self._folder.step,
                rank=self._folder.rank,
                site=self._sites.get(forward_name, ""),
                arguments=name_arguments(place.operator, arguments) if is_forward else arguments,
                inputs=inputs,
                outputs=outputs,
                forward=() if forward is None else (forward,),
            )
        )

    def _name_parameters(self, place: _Place, inputs: list[ForeignTensor]) -> list[ForeignTensor]:
        """Name the parameters among what an operator is given by their places, if the dump says nothing of modules."""
        if self._parents or place.operator not in _PARAMETERS:
            return inputs
        places = [str(number) for number in _PARAMETERS[place.operator]] + ["weight", "bias"]
        named = [
            replace(tensor, weight=f"{place.operator}.{place.ordinal}.{tensor.index}") if tensor.index in places else tensor
            for tensor in inputs
        ]
        for tensor in named:
            if tensor.weight:
                self._found.weights.setdefault(tensor.weight, tensor)
        return named


class _TensorReader:
    """Reads the nested values of calls.

    Args:
        folder: Of the step and process.
        damage: Gets what cannot be read, in words.
    """

    def __init__(self, folder: Path, damage: list[str]) -> None:
        self._folder = folder / TENSORS
        self._damage = damage

    def read_call(
        self, values: Mapping[str, Any], name: str
    ) -> tuple[list[ForeignTensor], list[ForeignTensor], dict[str, str]]:
        """Return inputs, outputs and the arguments that are no tensors."""
        inputs, outputs, arguments = list[ForeignTensor](), list[ForeignTensor](), dict[str, str]()
        for place, value in self._walk(values.get("input_args", values.get("input")), name):
            self._sort(place, value, inputs, arguments, name)
        for place, value in self._walk(values.get("input_kwargs"), name):
            self._sort(place, value, inputs, arguments, name)
        given = values.get("output")
        if isinstance(given, list) and len(given) == 1 and isinstance(given[0], dict) and "type" not in given[0]:
            given = given[0]  # a model's output with names: the names alone
        for place, value in self._walk(given, name):
            self._sort(place, value, outputs, {}, name)
        return inputs, outputs, arguments

    def read_leaf(self, index: str, value: Any, name: str) -> ForeignTensor | None:
        """Return one tensor; ``None`` if it is none, or cannot be read."""
        if not isinstance(value, dict) or "dtype" not in value or not isinstance(value.get("shape"), list):
            return None
        dtype = _name_dtype(str(value["dtype"]))
        shape = value["shape"]
        if dtype not in NUMPY_DTYPES:
            self._damage.append(f"{name}: a tensor of type {value['dtype']}, which is not read here")
            return None
        if len(shape) > _DEEPEST or any(type(size) is not int or not 0 <= size < 1 << 62 for size in shape):
            self._damage.append(f"{name}: a tensor of shape {str(shape)[:80]}")
            return None
        checksum = value.get("md5")
        return ForeignTensor(
            index,
            dtype,
            tuple(shape),
            self._read_statistics(value, dtype, shape, name),
            _name_checksum(str(checksum).lower()) if checksum else "",
            self._find_file(value.get("data_name"), dtype, name),
        )

    def _sort(self, place: str, value: Any, tensors: list[ForeignTensor], arguments: dict[str, str], name: str) -> None:
        if isinstance(value, dict) and "dtype" in value and "shape" in value:
            tensor = self.read_leaf(place, value, name)
            tensors += [tensor] if tensor is not None else []
        elif isinstance(value, dict):
            arguments[place] = str(value.get("value", value.get("type")))[:200]
        elif value is not None:
            arguments[place] = str(value)[:200]

    def _walk(self, value: Any, name: str, place: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
        if depth > _DEEPEST:
            self._damage.append(f"{name}: its values are nested more than {_DEEPEST} deep")
        elif isinstance(value, list):
            for number, each in enumerate(value):
                inside = f"{place}.{number}" if place else str(number)
                if depth < _DEEPEST and isinstance(each, dict) and isinstance(each.get("type"), str):  # as most are
                    yield inside, each
                else:
                    yield from self._walk(each, name, inside, depth + 1)
        elif isinstance(value, dict) and not isinstance(value.get("type"), str):
            for key, each in zip(name_keys(value), value.values(), strict=True):
                yield from self._walk(each, name, f"{place}.{key}" if place else key, depth + 1)
        elif place:
            yield place, value

    def _read_statistics(self, value: Mapping[str, Any], dtype: str, shape: Sequence[int], name: str) -> Statistics | None:
        numbers = [value.get("Min"), value.get("Max"), value.get("Mean"), value.get("Norm")]
        if dtype.startswith("complex") or numbers[0] is None:  # of complex numbers these are magnitudes
            return None
        if not {*map(type, numbers)} <= _NUMBERS:
            self._damage.append(f"{name}: its statistics are no numbers: {str(numbers)[:80]}")
            return None
        try:
            return make_statistics(dtype, shape, smallest=numbers[0], largest=numbers[1], mean=numbers[2], norm=numbers[3])
        except (ValueError, OverflowError):
            self._damage.append(f"{name}: its statistics leave the range of numbers: {str(numbers)[:80]}")
            return None

    def _find_file(self, file: Any, dtype: str, name: str) -> TensorFile | None:
        if not isinstance(file, str) or file in {"", "-1"}:
            return None
        path = self._folder / file
        if Path(file).name != file or path.suffix not in ENDINGS:
            self._damage.append(f"{name}: {file[:200]!r} is no name of a tensor's file in {TENSORS}/")
            return None
        if path.is_symlink():
            self._damage.append(f"{name}: {file} is a link, which may lead out of the dump")
            return None
        return find_file(path, dtype)


def _name_operator(match: re.Match[str]) -> str:
    """Return our name of an operator; a primitive of MindSpore such as ``LayerNorm`` is a class."""
    name = match["operator"].rpartition(".")[2]
    if name in _MINDSPORE_OPERATORS:
        return _MINDSPORE_OPERATORS[name]
    if match["kind"] == "Primitive":
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return canonical_name(name)


_NUMBERS = frozenset([float, int, bool, type(None)])  # that statistics may be: of booleans, the largest is `true`


@functools.lru_cache(maxsize=1024)
def _name_dtype(text: str) -> str:
    """Return our name of ``torch.float32`` and the like."""
    dtype = text.rpartition(".")[2].lower()
    return {"bool_": "bool", "half": "float16", "float": "float32"}.get(dtype, dtype)


def _name_checksum(digits: str) -> str:
    """Return ``crc32:1f2e3d4c``; ``""`` if these are no digits."""
    kind = "xor" if digits.startswith("0x") else "crc32"
    return f"{kind}:{digits.removeprefix('0x')}" if _HEX.fullmatch(digits) else ""


def _read_saved(folder: Folder, found: _Read) -> None:
    """Read what a program has saved by names of its own: ``NAME.NUMBER.debug``, gradients as ``NAME_grad.NUMBER.debug``."""
    data = _read_map(folder.path / SAVED).get("data")
    tensors = _TensorReader(folder.path, found.damage)
    for name, values in data.items() if isinstance(data, dict) else ():
        match = _SAVED_NAME.fullmatch(name)
        if match is None:
            found.damage.append(f"{folder.path / SAVED} has an entry of an unknown kind: {name[:200]}")
            continue
        _, outputs, _ = tensors.read_call({"output": values if isinstance(values, list) else [values]}, name)
        is_gradient = match["name"].endswith(_GRADIENT_SUFFIX)
        call = ForeignCall(
            API,
            OUTSIDE,
            phase=BACKWARD if is_gradient else FORWARD,
            operator=match["name"].removesuffix(_GRADIENT_SUFFIX) if is_gradient else match["name"],
            ordinal=int(match["number"]),
            step=folder.step,
            rank=folder.rank,
            outputs=outputs,
        )
        found.calls.append(call)


def _read_sites(path: Path) -> dict[str, str]:
    """Return call -> the lines that called it, as our dumps name them; :data:`_OPTIMIZER_SITE` for what an optimizer runs.

    Older versions have a list of lines for each call, newer ones a list of calls and of lines for each place.
    """
    sites = {}
    for key, value in _read_map(path, required=False).items():
        if not isinstance(value, list):
            continue
        is_shared = len(value) == 2 and all(isinstance(part, list) for part in value)
        names, lines = value if is_shared else ([key], value)
        frames = [str(line) for line in lines]
        site = _describe_site(frames)
        sites.update(dict.fromkeys([str(name) for name in names], site))
    return sites


def _describe_site(frames: Sequence[str]) -> str:
    if any(part in frame for frame in frames for part in _OF_OPTIMIZER):
        return _OPTIMIZER_SITE
    shown = []
    for frame in frames:
        match = _FRAME.match(frame)
        if match is None or any(part in match["path"] for part in _OWN_FRAMES):
            continue
        _, installed, inside = match["path"].rpartition("/site-packages/")
        shown.append(f"{inside if installed else Path(match['path']).name}:{match['line']} in {match['function']}")
    return " <- ".join(shown[:_FRAMES])
