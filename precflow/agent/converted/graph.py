"""A graph of ONNX and what is done with it: load, export, optimise, convert to float16, run with every tensor as an output.

``onnx`` and ``onnxruntime`` are imported where they are used: most agents have neither.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
import tempfile
import warnings
from typing import TYPE_CHECKING, Any, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

import torch

from precflow.agent.capture.nesting import leaves, output_tensors
from precflow.agent.failures import AgentError

if TYPE_CHECKING:
    from precflow.agent.request import ConversionSection

CPU = "CPUExecutionProvider"
READ = "/read"  # ending of what a node reads of a tensor: see `round_each`
FORCED = "/forced"  # ending of the graph input that stands in for a tensor
_LEVELS = {"none": "DISABLE_ALL", "basic": "ENABLE_BASIC", "extended": "ENABLE_EXTENDED", "all": "ENABLE_ALL"}
_KNOWN_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc"})
_MOST_BYTES = (1 << 31) - (1 << 20)  # of a message of protobuf; a larger graph keeps its weights in a file beside it
_NEWEST_OF_LEGACY = 20  # opset
_COMPILED = "compiled nodes"  # what ONNX Runtime says of a graph that it cannot write to a file
_READ = frozenset(  # no sequences and no text, and no bfloat16, which NumPy does not have
    "tensor(%s)" % kind
    for kind in "float16 float double bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 complex64 complex128".split()
)
_SHOWN = 5
_OF_MODULES = frozenset(dir(torch.nn.Module()))  # no module or parameter in one can have these names


def require(module: str) -> Any:
    """Import and return a module of the extra ``onnx``.

    Raises:
        AgentError: ``workload``: not installed in this side's interpreter; names the extra.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        library = str(error.name or module).partition(".")[0]
        message = "%s is not installed in this side's interpreter" % library
        raise AgentError("workload", message, "pip install 'precflow[onnx]' there, or %s alone" % library) from error


class _TensorsOnly(torch.nn.Module):
    """A model that returns the tensors of its output as a flat tuple, which both exporters take.

    Args:
        model: The model.
        names: Names of its inputs, for an exporter that gives them by place.
    """

    def __init__(self, model: torch.nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.model = model  # `pairing.WRAPPED`
        self._names = list(names)

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """Return the tensors in the model's output, in order."""
        output = self.model(**dict(zip(self._names, arguments)), **named)
        return tuple(tensor for _, tensor in output_tensors(output))


def export(model: torch.nn.Module, inputs: Mapping[str, Any], settings: ConversionSection, folder: str) -> Any:
    """Export a model by ``torch.onnx.export`` and return the ``onnx.ModelProto``.

    Raises:
        AgentError: ``workload``: a library is missing. ``unsupported``: torch cannot export the model.
    """
    onnx = require("onnx")
    names = [name for name, value in leaves(inputs) if isinstance(value, torch.Tensor)]
    path = os.path.join(folder, "exported.onnx")
    wrapped = _TensorsOnly(model, list(inputs))
    wrapped.train(model.training)
    try:
        with torch.no_grad(), _quietly():
            if settings.exporter == "dynamo":
                require("onnxscript")
                program = torch.onnx.export(
                    wrapped, (), kwargs=dict(inputs), dynamo=True, opset_version=settings.opset, input_names=names
                )
                program.save(path)  # type: ignore[union-attr]  # None only without dynamo
            else:
                torch.onnx.export(
                    wrapped,
                    tuple(inputs.values()),
                    path,
                    dynamo=False,
                    opset_version=min(settings.opset, _NEWEST_OF_LEGACY),
                    input_names=names,
                )
    except AgentError:
        raise
    except Exception as error:
        cause = error.__cause__ or error  # the exporter's own message is its general advice
        message = "torch.onnx.export (%s) cannot export the model: %s" % (settings.exporter, _first_line(cause))
        other = "legacy" if settings.exporter == "dynamo" else "dynamo"
        step = "try conversion.exporter=%s, or give a file: conversion.file=model.onnx" % other
        raise AgentError("unsupported", message, step) from error
    return onnx.load(path)


def _first_line(error: BaseException) -> str:
    return "%s: %s" % (type(error).__name__, (str(error).strip().splitlines() or [""])[0])


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Keep the exporter's report on its own progress off the screen."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def load(path: str) -> Any:
    """Return the graph in a file, with weights that lie beside it.

    Raises:
        AgentError: ``workload``: it is missing, or no graph, or the file of its weights is missing.
    """
    onnx = require("onnx")
    try:
        return onnx.load(path)
    except Exception as error:
        message = "conversion.file: %s cannot be read as a graph of ONNX: %s" % (path, _first_line(error))
        step = "weights that lie in files of their own belong beside it, under the names that it was saved with"
        raise AgentError("workload", message, step) from error


def place_of(tensor: str) -> str:
    """Return the name of a tensor as the name of a module: its parts are between points.

    >>> place_of("/encoder/layers.0/Add_output_0"), place_of("gelu_1"), place_of("a//training.")
    ('encoder.layers.0.Add_output_0', 'gelu_1', 'a.training_')
    """
    parts = (part for part in tensor.replace("/", ".").split(".") if part)
    return ".".join("%s_" % part if part in _OF_MODULES else part for part in parts) or "tensor"


def prepare(model: Any) -> Any:
    """Return the graph with functions written out and a name at each node, fit for everything else in this module.

    Raises:
        AgentError: ``unsupported``: it has operators that ONNX Runtime does not have.
    """
    inliner = require("onnx.inliner")
    if model.functions:
        model = inliner.inline_local_functions(model)
    foreign = sorted({"%s::%s" % (n.domain, n.op_type) for n in walk(model.graph) if n.domain not in _KNOWN_DOMAINS})
    if foreign:
        message = "the graph has operators that ONNX Runtime does not have: %s" % ", ".join(foreign[:_SHOWN])
        raise AgentError("unsupported", message, "export it without them: precflow loads no libraries of custom operators")
    taken = {node.name for node in model.graph.node}
    for number, node in enumerate(model.graph.node):
        if not node.name:
            name = "%s_%d" % (node.op_type, number)
            node.name = name if name not in taken else name + "_"
    return model


def walk(graph: Any) -> Iterator[Any]:
    """Yield every node of a graph, those of branches and loops too."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                yield from walk(inner)


def find_control_flow(model: Any) -> List[str]:
    """Return the names of nodes with a graph inside, which is run as a whole."""
    return [node.name for node in model.graph.node if any(a.HasField("g") or a.graphs for a in node.attribute)]


def optimise(model: Any, level: str, provider: str = CPU) -> Any:
    """Return the graph as ONNX Runtime's optimiser makes it.

    Nodes are fused only while what is between them is no output, so this comes before outputs are added. A device that compiles
    the graph, such as OpenVINO's, is given what no device fuses (level basic): how it goes on cannot be written to a file.
    """
    onnx = require("onnx")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "optimised.onnx")
        options = _make_options(level)
        options.optimized_model_filepath = path
        if _is_large(model):
            options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights")
            options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1024")
        try:
            _open(model, options, provider)
        except AgentError as error:
            if provider == CPU or _COMPILED not in error.message:
                raise
            return optimise(model, "basic")
        return onnx.load(path)


def to_half(model: Any, keep: Sequence[str]) -> Any:
    """Return the graph in float16.

    Args:
        model: The graph in float32; it stays as it is.
        keep: Names of nodes and of operators that stay in float32.

    Raises:
        AgentError: ``unsupported``: the converter gives up.
    """
    converter = require("onnxruntime.transformers.float16")
    nodes = {node.name for node in model.graph.node}
    unknown = [word for word in keep if word not in nodes and word not in {node.op_type for node in model.graph.node}]
    if unknown:
        message = "conversion.keep_float32: the graph has no node and no operator %s" % ", ".join(unknown)
        raise AgentError("bad_request", message, "names of nodes are in the report, operators are such as Softmax")
    operators = [word for word in keep if word not in nodes]
    try:
        with _quietly():
            half = converter.convert_float_to_float16(
                copy(model),
                keep_io_types=False,
                disable_shape_infer=_is_large(model),  # it writes the graph as one message
                op_block_list=[*converter.DEFAULT_OP_BLOCK_LIST, *operators],
                node_block_list=[word for word in keep if word in nodes],
            )
    except Exception as error:
        message = "the graph cannot be converted to float16: %s: %s" % (type(error).__name__, error)
        raise AgentError("unsupported", message, "target.dtype=float32 runs it as it is") from error
    _join_casts(half, nodes)
    return half


def _join_casts(half: Any, own: Set[str]) -> None:
    """Let a node that stays in float32 read what the one before it has computed in float32, and not its rounding.

    Args:
        half: The converted graph.
        own: Names of nodes that were in it before: their casts are the graph's.
    """
    onnx = require("onnx")
    made = {name: node for node in half.graph.node for name in node.output}
    target = {
        name: next(attribute.i for attribute in node.attribute if attribute.name == "to")
        for name, node in made.items()
        if node.op_type == "Cast" and node.name not in own
    }
    exact = {
        name: made[made[name].input[0]].input[0]
        for name, dtype in target.items()
        if dtype == onnx.TensorProto.FLOAT and target.get(made[name].input[0]) == onnx.TensorProto.FLOAT16
    }
    _rename(half.graph, exact)


def round_each(model: Any) -> Any:
    """Return a graph in float16 in which every node reads what the one before has rounded.

    The CPU has few operators in float16. ONNX Runtime computes the others in float32, and where two of them follow each other
    it leaves out the rounding in between: an overflow is not seen there, and is on any device that has float16. An `Identity`
    between them keeps the rounding.
    """
    onnx = require("onnx")
    made = copy(model)
    nodes = list(made.graph.node)
    outputs = [name for node in nodes if node.op_type != "Constant" for name in node.output if name]
    read = {name for node in walk(made.graph) for name in list_read(node)}
    _rename(made.graph, {name: name + READ for name in outputs if name in read})
    del made.graph.node[:]
    for node in nodes:
        made.graph.node.append(node)
        for name in node.output:
            if node.op_type != "Constant" and name in read:
                made.graph.node.append(onnx.helper.make_node("Identity", [name], [name + READ], name=name + READ))
    return made


def copy(model: Any) -> Any:
    """Return a copy of a graph."""
    made = type(model)()
    made.CopyFrom(model)
    return made


class Feeds(NamedTuple):
    """What goes into a graph.

    Attributes:
        inputs: Name of an input of the graph -> its value, NumPy.
        forced: Name of a tensor inside -> what everything behind it is given in its place.
    """

    inputs: Mapping[str, Any]
    forced: Mapping[str, Any] = {}


def run(model: Any, feeds: Feeds, *, only: Optional[Iterable[str]] = None, provider: str = CPU) -> Dict[str, Any]:
    """Run a graph as it is, without optimisation, and return every tensor by name.

    Args:
        model: The graph; it stays as it is.
        feeds: What goes in. A tensor that is forced is computed too, from what is before it.
        only: Tensors to return; all of the graph (not of branches and loops) if not given.
        provider: ONNX Runtime's name of the device.

    Raises:
        AgentError: ``unsupported``: ONNX Runtime cannot run the graph. ``workload``: an input does not fit.
    """
    work = copy(model)
    forced = _force(work, feeds.forced)
    _add_outputs(work, only)
    session = _open(work, _make_options("none"), provider)
    wanted = {put.name: put.type for put in session.get_inputs()}
    given = {**_fit(feeds.inputs, wanted), **forced}
    missing = [name for name in wanted if name not in given]
    if missing:
        message = "the graph wants inputs that the workload does not have: %s" % ", ".join(missing)
        raise AgentError("workload", message, "name workload.inputs as the graph does: it has %s" % ", ".join(wanted))
    names = [put.name for put in session.get_outputs()]
    values = require("onnxruntime").OrtValue
    try:
        made = session.run_with_ort_values(names, {name: values.ortvalue_from_numpy(given[name]) for name in wanted})
    except Exception as error:
        raise AgentError("unsupported", "ONNX Runtime cannot run the graph: %s" % str(error).strip()) from error
    kinds = {name: value.data_type() for name, value in zip(names, made) if value.has_value()}
    return {name: value.numpy() for name, value in zip(names, made) if kinds.get(name) in _READ}


def run_on(model: Any, feeds: Feeds, provider: str) -> Dict[str, Any]:
    """Run a graph on a device and return every tensor by name; see :func:`run`."""
    return run(model, feeds, provider=provider)


def keeps_more_digits(model: Any, feeds: Feeds, values: Mapping[str, Any], provider: str) -> bool:
    """Tell whether a device hands on more digits from node to node than the tensors in float16 that it shows have.

    OpenVINO on a CPU computes a graph in float16 in float32 throughout, and rounds what is asked for. Given what it has shown,
    such a device computes something else.

    Args:
        model: The graph.
        feeds: What went in.
        values: All tensors that came of it, by name.
        provider: ONNX Runtime's name of the device.
    """
    made = [name for node in model.graph.node if node.op_type != "Constant" for name in node.output]
    forced = {name: values[name] for name in made if name in values and values[name].dtype == "float16"}
    again = run(model, feeds._replace(forced={**forced, **feeds.forced}), provider=provider)
    return any(again[name].tobytes() != value.tobytes() for name, value in forced.items())


def _fit(inputs: Mapping[str, Any], wanted: Mapping[str, str]) -> Dict[str, Any]:
    """Return inputs in the types that a graph declares, as far as floating point goes."""
    types = {"tensor(float16)": "float16", "tensor(float)": "float32", "tensor(double)": "float64"}
    fitted = {}
    for name, value in inputs.items():
        dtype = types.get(wanted.get(name, ""))
        fitted[name] = value.astype(dtype) if dtype and value.dtype.kind == "f" else value
    return fitted


def _force(work: Any, forced: Mapping[str, Any]) -> Dict[str, Any]:
    """Let everything read graph inputs in place of some tensors; return these inputs by name."""
    onnx = require("onnx")
    if not forced:
        return {}
    _rename(work.graph, {name: name + FORCED for name in forced})
    for name, value in forced.items():
        kind = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
        work.graph.input.append(onnx.helper.make_tensor_value_info(name + FORCED, kind, list(value.shape)))
    return {name + FORCED: value for name, value in forced.items()}


def _rename(graph: Any, names: Mapping[str, str]) -> None:
    for node in walk(graph):
        for number, name in enumerate(node.input):
            if name in names:
                node.input[number] = names[name]
    for node in walk(graph):
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                for output in inner.output:  # a branch may return a tensor from outside as it is
                    output.name = names.get(output.name, output.name)


def _add_outputs(work: Any, only: Optional[Iterable[str]]) -> None:
    onnx = require("onnx")
    wanted: Optional[Set[str]] = None if only is None else set(only)
    have = {output.name for output in work.graph.output}
    for node in work.graph.node:
        for name in node.output:
            if name and name not in have and (wanted is None or name in wanted):
                work.graph.output.append(onnx.ValueInfoProto(name=name))  # ONNX Runtime finds out the type
                have.add(name)


def _make_options(level: str) -> Any:
    runtime = require("onnxruntime")
    options = runtime.SessionOptions()
    options.graph_optimization_level = getattr(runtime.GraphOptimizationLevel, "ORT_" + _LEVELS[level])
    options.log_severity_level = 4
    options.intra_op_num_threads = torch.get_num_threads()
    return options


def open_session(model: Any) -> Any:
    """Return a session of ONNX Runtime that runs a graph on the CPU as it is.

    Raises:
        AgentError: ``unsupported``: ONNX Runtime does not take the graph.
    """
    return _open(model, _make_options("none"), CPU)


def _open(model: Any, options: Any, provider: str) -> Any:
    runtime = require("onnxruntime")
    available = runtime.get_available_providers()
    if provider not in available:
        message = "conversion.provider: ONNX Runtime has no %s here" % provider
        raise AgentError("device_missing", message, "it has %s" % ", ".join(available))
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    try:
        with _as_source(model) as source:
            session = runtime.InferenceSession(source, options, providers=[provider])
    except AgentError:
        raise
    except Exception as error:
        message = "ONNX Runtime does not take the graph: %s" % str(error).strip()
        raise AgentError("unsupported", message, "the check of ONNX says more: python -m onnx.checker FILE") from error
    _refuse_fallback(session, provider)
    return session


def _refuse_fallback(session: Any, provider: str) -> None:
    """Refuse a session in which ONNX Runtime computes everything on the CPU though another device was asked for.

    It does so with no more than a line in its log: a device that does not start, or takes no node of the graph, would look
    right.

    Raises:
        AgentError: ``device_missing``.
    """
    step = "target.conversion.provider=%s computes there, and says so" % CPU
    if provider not in session.get_providers():
        message = "ONNX Runtime could not start %s here, and would compute on the CPU"
        raise AgentError("device_missing", message % provider, step)
    nodes = list_nodes(session)
    if nodes and provider not in nodes:
        message = "%s takes no node of this graph: ONNX Runtime would compute all of it on %s"
        raise AgentError("device_missing", message % (provider, ", ".join(sorted(nodes))), step)


def list_nodes(session: Any) -> Dict[str, List[str]]:
    """Return the operators of the nodes that each device computes, by its name; nothing where ONNX Runtime does not tell."""
    tell = getattr(session, "get_provider_graph_assignment_info", None)
    found: Dict[str, List[str]] = {}
    for part in tell() if tell else ():
        found.setdefault(part.ep_name, []).extend(node.op_type for node in part.get_nodes())
    return found


def list_elsewhere(model: Any, provider: str) -> List[str]:
    """Return the operators of the nodes that are computed on the CPU though another device was asked for."""
    if provider == CPU:
        return []
    work = copy(model)
    _add_outputs(work, None)
    nodes = list_nodes(_open(work, _make_options("none"), provider))
    return [operator for name, operators in nodes.items() if name != provider for operator in operators]


def _is_large(model: Any) -> bool:
    """Tell whether a graph is too large for one message of protobuf, which cannot even be asked for its size then."""
    onnx = require("onnx")
    inner = [attribute.t for node in walk(model.graph) for attribute in node.attribute if attribute.HasField("t")]
    total = 0
    for tensor in (*model.graph.initializer, *inner):
        count = 1
        for size in tensor.dims:
            count *= size
        total += count * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    return bool(total >= _MOST_BYTES)


@contextlib.contextmanager
def _as_source(model: Any) -> Iterator[Any]:
    """Yield a graph as bytes, or as the path of a file if it is too large for one message."""
    if not _is_large(model):
        yield model.SerializeToString()
        return
    onnx = require("onnx")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "graph.onnx")
        onnx.save_model(copy(model), path, save_as_external_data=True, location="weights")
        yield path


def between(model: Any, tensor: str, known: Iterable[str]) -> List[Any]:
    """Return the nodes that compute a tensor from known ones, in the graph's order."""
    made = {name: node for node in model.graph.node for name in node.output if name}
    stop, seen, todo, found = set(known), set(), [tensor], set()
    while todo:
        name = todo.pop()
        if name in seen or (name in stop and name != tensor) or name not in made:
            continue
        seen.add(name)
        found.add(made[name].name)
        todo += [used for used in list_read(made[name]) if used]
    return [node for node in model.graph.node if node.name in found]


def extract(model: Any, tensor: str, known: Iterable[str]) -> Tuple[Any, List[str]]:
    """Return a graph of the nodes that compute one tensor from known ones, and the names that it reads."""
    onnx = require("onnx")
    nodes = between(model, tensor, known)
    made = {name for node in nodes for name in node.output}
    used = [name for node in nodes for name in sorted(list_read(node)) if name and name not in made]
    weights = [weight for weight in model.graph.initializer if weight.name in used]
    inner = {name for node in nodes for each in walk_inside(node) for name in each.output}
    stored = {weight.name for weight in weights} | inner
    inputs = [name for name in dict.fromkeys(used) if name not in stored]
    helper = onnx.helper
    piece = helper.make_graph(
        nodes,
        "piece",
        [onnx.ValueInfoProto(name=name) for name in inputs],
        [onnx.ValueInfoProto(name=tensor)],
        weights,
    )
    return helper.make_model(piece, opset_imports=model.opset_import, ir_version=model.ir_version), inputs


def walk_inside(node: Any) -> Iterator[Any]:
    """Yield every node in the branches and loops of a node."""
    for attribute in node.attribute:
        for inner in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
            yield from walk(inner)


def list_read(node: Any) -> Set[str]:
    """Return the names of what a node reads, with what its branches and loops read from outside."""
    used, inner = set(node.input), set()
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
            for each in walk(graph):
                used.update(each.input)
                inner.update(each.output)
            used.update(output.name for output in graph.output)
            inner.update(put.name for put in (*graph.input, *graph.initializer))
    return used - inner
