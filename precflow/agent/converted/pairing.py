"""Which tensor of a graph is which record of torch.

Two things say so, and neither alone is enough. *Scopes*: the exporter writes the module of each node into the graph, but it
fuses and splits operators. *Values*: two tensors that agree in a clean run are the same, but behind a fault nothing agrees. So:

1.  The graph runs in float32 as it is. A record is paired with the tensor of its scope if their values agree, else with the one
    that agrees best.
2.  Where the first record has no partner by value, the tensor of its scope is *forced*: what comes behind is given torch's
    values in its place. If more agree then, the pair is right, and what is wrong is in the nodes before it. If not, it is none.
3.  Again, until all are settled.

The pairs are kept by name, and used for all other runs: optimised, in float16, on another device.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Sequence, Set, Tuple

from precflow.agent.contract import API, MODULE
from precflow.agent.converted.graph import place_of, require

WRAPPED = "model"  # name of the model in what is exported: scopes begin with it
AGREE = 1e-4  # relative L2 of float32 tensors that are the same: rounding stays far below, and another tensor far above
LEAST_FILL, _LEAST_HALF_FILL = 1e9, 9e3  # of masks, in float32 and as the converter to float16 writes them
_MOST_CANDIDATES = 3  # records that are tried for one tensor
_MOST_FORCED = 24  # tensors that are tried
_SAME_OPERATOR = {  # aten or ONNX -> the torch function that calls it; only where the names differ
    "_native_batch_norm_legit_no_training": "batch_norm",
    "convolution": "conv2d",
    "_softmax": "softmax",
    "_to_copy": "to",
    "native_layer_norm": "layer_norm",
    "native_group_norm": "group_norm",
    "upsample_nearest2d": "interpolate",
    "max_pool2d_with_indices": "max_pool2d",
    "addmm": "linear",
    "truediv": "div",
    "rsub": "sub",
    "__mul__": "mul",
    "relu_": "relu",
    "silu_": "silu",
    "adaptive_avg_pool2d": "mean",
    "boolean_dispatch": "max_pool2d",
    "Gemm": "linear",
    "LayerNormalization": "layer_norm",
    "Conv": "conv2d",
    "MaxPool": "max_pool2d",
    "GlobalAveragePool": "mean",
    "ReduceMean": "mean",
    "Gather": "embedding",
    "Resize": "interpolate",
    "InstanceNormalization": "group_norm",
    "BatchNormalization": "batch_norm",
}


class TorchRecord(NamedTuple):
    """One output of a call of torch.

    Attributes:
        key: Order of the call and path of the output.
        module: The module that was called, or that called the operator.
        operator: Canonical name, ``""`` for the module itself.
        level: ``module`` or ``api``.
        value: The tensor in float32, NumPy.
        name: Identity text.
    """

    key: Tuple[int, str]
    module: str
    operator: str
    level: str
    value: Any
    name: str


class Pairs(NamedTuple):
    """What was found.

    Attributes:
        tensors: Key of a record -> name of the tensor.
        forced: Tensors whose values had to be forced: the nodes before each compute something else than torch.
    """

    tensors: Dict[Tuple[int, str], str]
    forced: List[str]


def pair(
    records: Sequence[TorchRecord],
    model: Any,
    outputs: Sequence[Tuple[int, str]],
    run: Callable[[Mapping[str, Any]], Mapping[str, Any]],
) -> Pairs:
    """Pair the records of a run of torch with the tensors of a graph.

    Args:
        records: Of a run in float32, in order of completion.
        model: The graph.
        outputs: Keys of the records that are the model's own outputs, in the order in which the graph returns them; none if it
            does not return all of them.
        run: Runs the graph with tensors that are forced, and returns all tensors.
    """
    order = [name for node in model.graph.node for name in node.output if name]
    place = {name: number for number, name in enumerate(order)}
    known = {record.key: record for record in records}
    by_scope = find_by_scope(records, model)
    ends = [output.name for output in model.graph.output]
    certain = dict(zip(outputs, ends)) if len(outputs) == len(ends) else {}
    by_scope.update({key: name for key, name in certain.items() if key in known})
    forced: Dict[str, Any] = {}
    rejected: Set[str] = set()
    tensors = run(forced)
    agreeing = _find_agreeing(records, by_scope, tensors, order)
    for _ in range(_MOST_FORCED):
        open_ = [
            (place[name], name, known[key])
            for key, name in by_scope.items()
            if key not in agreeing
            and name in place
            and name not in forced
            and name not in rejected
            and _fits(known[key].value, tensors.get(name))
        ]
        if not open_:
            break
        _, name, scoped = min(open_, key=lambda each: (each[0], each[2].key))
        for record in _list_candidates(scoped, records, agreeing):
            trial = {**forced, name: record.value.reshape(tensors[name].shape).astype(tensors[name].dtype)}
            tried = run(trial)
            found = _find_agreeing(records, by_scope, tried, order)
            if len(found) > len(agreeing) or name in certain.values():
                forced, tensors, agreeing = trial, tried, found
                break
        else:
            rejected.add(name)
    same = {
        record.key: name
        for name, value in forced.items()
        for record in records
        if _fits(record.value, value) and (record.value.reshape(-1) == value.reshape(-1)).all()
    }
    return Pairs({**agreeing, **same}, list(forced))


def _list_candidates(
    scoped: TorchRecord, records: Sequence[TorchRecord], agreeing: Mapping[Tuple[int, str], str]
) -> List[TorchRecord]:
    """Return the record that a scope names, and the next ones of its size: a norm that was folded into it is one of them."""
    behind = [
        record
        for record in records
        if record.key > scoped.key and record.key not in agreeing and _fits(record.value, scoped.value)
    ]
    found = [scoped]
    for record in behind:
        if len(found) < _MOST_CANDIDATES and not any(_differ(record.value, other.value) == 0 for other in found):
            found.append(record)
    return found


def find_by_scope(records: Sequence[TorchRecord], model: Any) -> Dict[Tuple[int, str], str]:
    """Return the tensor of each record, as the scopes say: modules by what leaves them, operators by their order."""
    nodes = _read_scopes(model.graph, {record.module for record in records})
    by_name = _match_names(records, model.graph)
    return {**_match_modules(records, nodes, model.graph), **_match_operators(records, nodes), **by_name}


def _match_names(records: Sequence[TorchRecord], graph: Any) -> Dict[Tuple[int, str], str]:
    """Return the tensors that have the name of a record's module: where the other side is a graph too."""
    names: Dict[Tuple[str, str], str] = {}
    for node in graph.node:
        made = [name for name in node.output if name]
        names.update({(place_of(made[0]), str(number)): name for number, name in enumerate(made)})
    own = ((record, (record.module, record.key[1])) for record in records if record.level == MODULE)
    return {record.key: names[place] for record, place in own if place in names}


def _match_modules(records: Sequence[TorchRecord], nodes: Sequence[_Scoped], graph: Any) -> Dict[Tuple[int, str], str]:
    found: Dict[Tuple[int, str], str] = {}
    leaving = _find_leaving(nodes, graph)
    of_module: Dict[str, List[TorchRecord]] = defaultdict(list)
    for record in records:
        if record.level == MODULE:
            of_module[record.module].append(record)
    for module, made in of_module.items():
        left = leaving.get(module, [])
        if len(left) == len(made):
            found.update({record.key: name for record, name in zip(made, left)})
        elif len(made) == 1 and left:
            found[made[0].key] = left[-1]
    return found


def _match_operators(records: Sequence[TorchRecord], nodes: Sequence[_Scoped]) -> Dict[Tuple[int, str], str]:
    found: Dict[Tuple[int, str], str] = {}
    steps: Dict[Tuple[str, str], List[str]] = defaultdict(list)
    for node in _join_steps(nodes):
        steps[node.path[-1], node.operator].append(node.tensor)
    of_operator: Dict[Tuple[str, str], List[TorchRecord]] = defaultdict(list)
    for record in records:
        if record.level == API and record.key[1] == "0":
            of_operator[record.module, _canonical(record.operator)].append(record)
    for key, made in of_operator.items():
        if len(steps.get(key, [])) == len(made):
            found.update({record.key: name for record, name in zip(made, steps[key])})
    return found


class _Scoped(NamedTuple):
    """A node with its scope: the modules around it, outermost first, its operator, its step of the exporter, and its result."""

    path: Tuple[str, ...]
    operator: str
    step: str
    tensor: str
    node: Any


def _read_scopes(graph: Any, modules: Set[str]) -> List[_Scoped]:
    scoped = []
    for node in graph.node:
        said = {entry.key.rpartition(".")[2]: entry.value for entry in node.metadata_props}
        tensor = next((name for name in node.output if name), "")
        if "name_scopes" in said:
            *path, step = ast.literal_eval(said["name_scopes"])
            path = [_unwrap(name) for name in path]
            target = re.search(r"target=torch\.ops\.\w+\.(\w+)", said.get("fx_node", ""))
            scoped.append(_Scoped(tuple(path) or ("",), _canonical(target.group(1)) if target else "", step, tensor, node))
        elif node.name.startswith("/"):
            path = _follow_names(node.name.strip("/").split("/")[:-1], modules)
            scoped.append(_Scoped(path, _canonical(node.op_type), tensor, tensor, node))
    return scoped


def _unwrap(name: str) -> str:
    """Return the name of a module in the model, of its name in what was exported.

    >>> _unwrap("model.encoder"), _unwrap("model"), _unwrap("")
    ('encoder', '', '')
    """
    return "" if name in {"", WRAPPED} else name[len(WRAPPED) + 1 :]


def _follow_names(parts: Sequence[str], modules: Set[str]) -> Tuple[str, ...]:
    """Return the modules around a node of the legacy exporter, whose name is ``/model/encoder/layers.0/fc1/MatMul``."""
    path = [""]
    for part in parts[1:] if parts[:1] == [WRAPPED] else parts:
        above = path[-1]
        around = (above, above.rpartition(".")[0], above.rpartition(".")[0].rpartition(".")[0])
        inner = next((name for name in (("%s.%s" % (outer, part)).strip(".") for outer in around) if name in modules), "")
        if not inner and len(path) == 1:  # a module around it was not called itself, such as one whose `encode` was
            ending = [name for name in modules if name.endswith("." + part)]
            inner = ending[0] if len(ending) == 1 else ""
        if inner:
            path.append(inner)
    return tuple(path)


def _find_leaving(nodes: Sequence[_Scoped], graph: Any) -> Dict[str, List[str]]:
    """Return module -> the tensors that are made inside and read outside or returned, in order."""
    ends = {output.name for output in graph.output}
    readers: Dict[str, List[Set[str]]] = defaultdict(list)
    for scoped in nodes:
        for name in scoped.node.input:
            readers[name].append(set(scoped.path))
    leaving: Dict[str, List[str]] = defaultdict(list)
    for scoped in nodes:
        for name in scoped.node.output:
            for module in dict.fromkeys(scoped.path):
                if name in ends or any(module not in around for around in readers[name]):
                    leaving[module].append(name)
    return leaving


def _join_steps(nodes: Sequence[_Scoped]) -> List[_Scoped]:
    """Return one entry for each step of the exporter: of its nodes the last, or the one whose tensor has its name."""
    joined: Dict[str, _Scoped] = {}
    names = {name for scoped in nodes for name in scoped.node.output}
    for scoped in nodes:
        tensor = scoped.step if scoped.step in names else scoped.tensor
        joined[scoped.step] = scoped._replace(tensor=tensor)
    return list(joined.values())


def _canonical(operator: str) -> str:
    return _SAME_OPERATOR.get(operator, operator.lower() if operator[:1].isupper() else operator)


def _find_agreeing(
    records: Sequence[TorchRecord], by_scope: Mapping[Tuple[int, str], str], tensors: Mapping[str, Any], order: Sequence[str]
) -> Dict[Tuple[int, str], str]:
    """Return key -> tensor of the records whose value is in the graph: that of the scope, else the nearest one."""
    of_size: Dict[Tuple[int, bool], List[str]] = defaultdict(list)
    lengths: Dict[str, float] = {}
    for name in order:
        value = tensors.get(name)
        if value is not None and value.size > 1:
            of_size[value.size, value.dtype.kind == "f"].append(name)
            lengths[name] = length(value)
    found = {}
    for record in records:
        name = by_scope.get(record.key, "")
        if name and _fits(record.value, tensors.get(name)) and _differ(tensors[name], record.value) < AGREE:
            found[record.key] = name
            continue
        own = length(record.value)
        near = [
            (_differ(tensors[other], record.value), number, other)
            for number, other in enumerate(of_size.get((record.value.size, record.value.dtype.kind == "f"), ()))
            if abs(lengths[other] - own) <= AGREE * own
        ]
        if near and min(near)[0] < AGREE and own > 0:
            found[record.key] = min(near)[2]
    return found


def _differ(tensor: Any, value: Any) -> float:
    """Return how far apart two tensors are; integers and booleans are the same or not."""
    if value.dtype.kind == "f":
        return relative_l2(tensor, value)
    return 0.0 if tensor.dtype == value.dtype and (tensor.reshape(-1) == value.reshape(-1)).all() else float("inf")


def _fits(value: Any, tensor: Any) -> bool:
    return tensor is not None and (tensor.dtype.kind == "f") == (value.dtype.kind == "f") and tensor.size == value.size


def length(value: Any) -> float:
    """Return the Euclidean norm in float64; sums of finite numbers beyond its range are not met here."""
    numpy = require("numpy")
    return float(numpy.linalg.norm(value.astype(numpy.float64).reshape(-1)))


def relative_l2(value: Any, expected: Any) -> float:
    """Return the norm of the difference, relative to ``expected``; 0 where both are equal, infinite where only one is finite.

    Places where both have the same infinity, or both NaN, count as equal.
    """
    numpy = require("numpy")
    here, there = (each.astype(numpy.float64).reshape(-1) for each in (value, expected))
    finite = numpy.isfinite(here) & numpy.isfinite(there)
    # A fill in float32 (-3e38) is -1e4 or less in float16, and infinite if a score was added to it: all mask alike.
    fill = (numpy.abs(there) >= LEAST_FILL) & (numpy.abs(here) >= _LEAST_HALF_FILL) & (here * there > 0)
    same = (here == there) | (numpy.isnan(here) & numpy.isnan(there)) | fill
    if same.all():
        return 0.0
    if not (finite | same).all():
        return float("inf")
    ordinary = finite & ~fill & (numpy.abs(there) < LEAST_FILL)
    difference = numpy.linalg.norm((here - there)[finite & ~fill])
    scale = numpy.linalg.norm(there[ordinary])
    return float(difference / scale) if scale else float("inf")
