"""A graph of ONNX as a model of torch: each node is a module that ONNX Runtime computes, so that a graph can be a reference.

For two graphs without the model in torch: what was there before an upgrade of the opset, the exporter or a tool is what the new
one has to agree with. A module has the name of the first tensor that its node makes, and weights have theirs::

    /encoder/layers.0/fc1/MatMul_output_0   is   encoder.layers.0.fc1.MatMul_output_0
"""

from __future__ import annotations

import functools
import os
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple, Union

import torch

from precflow.agent.converted import graph
from precflow.agent.failures import AgentError

_BELOW = 2  # whole numbers that are drawn: 0 and 1 are rows of any table
_OPENED = 1 << 14  # nodes that stay ready
# Of these every device gives the same bits: they move values, choose among them or change their sign.
_EXACT = frozenset(
    "Abs Cast Clip Concat Constant ConstantOfShape DepthToSpace Expand Flatten Gather GatherElements GatherND Identity Max "
    "MaxPool Min Neg Pad Relu Reshape ScatterElements ScatterND Shape Sign Slice SpaceToDepth Split Squeeze Tile TopK "
    "Transpose Unsqueeze Where".split()
)


class _Written(NamedTuple):
    """A node as it is written: its bytes, the names of what it reads and makes, and the versions of operators and file."""

    node: bytes
    reads: Tuple[str, ...]
    makes: Tuple[str, ...]
    opsets: Tuple[Tuple[str, int], ...]
    version: int


class Node(torch.nn.Module):
    """One node of a graph.

    Args:
        written: The node.
    """

    written: _Written

    def __init__(self, written: _Written) -> None:
        super().__init__()
        self.written = written

    def forward(self, *read: torch.Tensor) -> Union[torch.Tensor, Tuple[torch.Tensor, ...]]:
        """Return what the node makes of what it reads, in order."""
        rounds = type(self).__name__ not in _EXACT
        given = [_as_it_is(value) if rounds else value for value in read]
        arrays = [value.detach().cpu().numpy() for value in given]
        session = _open(self.written, tuple(array.dtype.str for array in arrays))
        try:
            made = [torch.from_numpy(value) for value in session.run(None, dict(zip(self.written.reads, arrays)))]
        except Exception as error:
            message = "the node of %s (%s) cannot be computed: %s" % (self.written.makes[0], type(self).__name__, error)
            step = "sequences, text and bfloat16 are no tensors of NumPy; a shape that does not fit comes from workload.inputs"
            raise AgentError("unsupported", message, step) from error
        results = tuple(_as_it_is(value) if rounds else value for value in made)
        return results if len(results) > 1 else results[0]


def _as_it_is(value: torch.Tensor) -> torch.Tensor:
    """Return the same numbers by way of an operator of torch.

    What rounding does is measured by small changes of what torch's operators give: without one the nodes would know of none.
    """
    return value * 1 if value.is_floating_point() else value


@functools.lru_cache(maxsize=_OPENED)
def _open(written: _Written, types: Tuple[str, ...]) -> Any:
    """Return a session of ONNX Runtime that computes one node.

    Raises:
        AgentError: ``unsupported``: ONNX Runtime does not take the node.
    """
    onnx, numpy = graph.require("onnx"), graph.require("numpy")
    helper = onnx.helper
    node = onnx.NodeProto.FromString(written.node)
    kinds = [helper.np_dtype_to_tensor_dtype(numpy.dtype(name)) for name in types]
    inputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in zip(written.reads, kinds)]
    outputs = [onnx.ValueInfoProto(name=name) for name in written.makes]
    opsets = [helper.make_opsetid(*each) for each in written.opsets]
    piece = helper.make_model(
        helper.make_graph([node], "node", inputs, outputs), opset_imports=opsets, ir_version=written.version
    )
    return graph.open_session(piece)


class Graph(torch.nn.Module):
    """A graph of ONNX.

    Args:
        file: Path of the graph.

    Raises:
        AgentError: ``workload``: the file cannot be read, or ``onnx`` or ``onnxruntime`` is missing. ``unsupported``: it has
            operators of others, or two tensors whose names are one.
    """

    def __init__(self, file: str) -> None:
        super().__init__()
        model = graph.prepare(graph.load(os.path.expanduser(file)))
        numpy_helper = graph.require("onnx.numpy_helper")
        self._puts = {put.name: _read_type(put) for put in _list_puts(model)}
        self._weights = {weight.name: graph.place_of(weight.name) for weight in model.graph.initializer}
        self._outputs = [output.name for output in model.graph.output]
        for weight in model.graph.initializer:
            value = torch.from_numpy(numpy_helper.to_array(weight).copy())
            kept = torch.nn.Parameter(value, requires_grad=False) if value.is_floating_point() else value
            _put(self, self._weights[weight.name], kept)
        self._types = {name: self._weight(name).dtype for name in self._weights}
        self._nodes: List[Tuple[str, _Written]] = []
        kinds: Dict[str, type] = {}
        opsets = tuple((each.domain, each.version) for each in model.opset_import)
        for node in model.graph.node:
            reads = tuple(sorted(name for name in graph.list_read(node) if name))
            makes = tuple(name for name in node.output if name)
            written = _Written(node.SerializeToString(), reads, makes, opsets, model.ir_version)
            kind = kinds.setdefault(node.op_type, type(str(node.op_type), (Node,), {}))  # the class that records show
            _put(self, graph.place_of(makes[0]), kind(written))
            self._nodes.append((graph.place_of(makes[0]), written))

    def _weight(self, name: str) -> torch.Tensor:
        around, _, last = self._weights[name].rpartition(".")
        tensor: torch.Tensor = getattr(self.get_submodule(around), last)
        return tensor

    def forward(self, **inputs: torch.Tensor) -> Dict[str, torch.Tensor]:
        """Return the graph's outputs by name.

        Args:
            inputs: By the names that the graph has for them; floating point of any type.

        Raises:
            AgentError: ``workload``: one is missing. ``unsupported``: a node cannot be computed.
        """
        missing = [name for name in self._puts if name not in inputs]
        if missing:
            message = "the graph wants the inputs %s, and was not given %s" % (", ".join(self._puts), ", ".join(missing))
            raise AgentError("workload", message, "name workload.inputs as the graph does")
        as_declared = {name: dtype for name, dtype in self._puts.items() if dtype.is_floating_point}
        given = {name: inputs[name].to(as_declared.get(name, inputs[name].dtype)) for name in self._puts}
        known = {**given, **{name: self._weight(name).to(dtype) for name, dtype in self._types.items()}}
        for place, written in self._nodes:
            made = self.get_submodule(place)(*[known[name] for name in written.reads])
            known.update(zip(written.makes, made if isinstance(made, tuple) else (made,)))
        return {name: known[name] for name in self._outputs}


def _put(model: torch.nn.Module, place: str, value: Union[torch.nn.Module, torch.Tensor]) -> None:
    """Put a module, a parameter or a buffer where its name says, with empty modules around it.

    Raises:
        AgentError: ``unsupported``: something else is there.
    """
    *around, last = place.split(".")
    for name in around:
        if name not in model._modules:  # noqa: SLF001  a name such as `training` is an attribute already
            if hasattr(model, name):
                raise _taken(place)
            model.add_module(name, torch.nn.Module())
        model = model.get_submodule(name)
    empty = model._modules.get(last)  # noqa: SLF001
    if hasattr(model, last) and not (type(empty) is torch.nn.Module and isinstance(value, torch.nn.Module)):
        raise _taken(place)
    if isinstance(value, torch.nn.Module):
        if empty is not None:  # `a`, where `a.b` has been before
            value._modules.update(empty._modules)  # noqa: SLF001
            value._parameters.update(empty._parameters)  # noqa: SLF001
            value._buffers.update(empty._buffers)  # noqa: SLF001
        model._modules[last] = value  # noqa: SLF001  add_module refuses a name that is there
    elif isinstance(value, torch.nn.Parameter):
        model.register_parameter(last, value)
    else:
        model.register_buffer(last, value)


def _taken(place: str) -> AgentError:
    message = "two tensors of the graph have the name %s, with points for slashes" % place
    return AgentError("unsupported", message, "rename one of them in the file")


def load(*, file: str) -> Graph:
    """Return a graph as a model.

    Args:
        file: Path of the graph; weights in files of their own lie beside it.

    Raises:
        AgentError: ``workload``: it cannot be read, or a library is missing. ``unsupported``: it has operators of others.
    """
    return Graph(file)


def inputs(*, file: str, values: str = "", sizes: Optional[Mapping[str, int]] = None, seed: int = 0) -> Dict[str, torch.Tensor]:
    """Return inputs for a graph: yours, or drawn ones where you have none.

    What is drawn is the same in each run: floating point from a normal distribution, whole numbers and booleans 0 or 1.

    Args:
        file: Path of the graph.
        values: Path of a ``.npz`` or ``.safetensors`` with an array for each input, by name.
        sizes: Sizes of axes that the graph leaves open, by the names that it has for them.
        seed: What is drawn with.

    Raises:
        AgentError: ``workload``: a file cannot be read, an input is missing, or an axis has no size.
    """
    model = graph.load(os.path.expanduser(file))
    puts = _list_puts(model)
    if not values:
        generator = torch.Generator().manual_seed(seed)
        return {put.name: _draw(put, sizes or {}, generator) for put in puts}
    given = _read(os.path.expanduser(values))
    missing = [put.name for put in puts if put.name not in given]
    if missing:
        message = "workload.inputs.values: %s has no %s" % (values, ", ".join(missing))
        raise AgentError("workload", message, "it has %s; save one array for each input" % (", ".join(sorted(given)) or "none"))
    return {put.name: given[put.name] for put in puts}


def _list_puts(model: Any) -> List[Any]:
    """Return the inputs of a graph; older files list the weights among them."""
    weights = {weight.name for weight in model.graph.initializer}
    return [put for put in model.graph.input if put.name not in weights]


def _read_type(put: Any) -> torch.dtype:
    """Return the element type of an input.

    Raises:
        AgentError: ``unsupported``: it is no tensor of numbers.
    """
    try:
        array = graph.require("onnx.helper").tensor_dtype_to_np_dtype(put.type.tensor_type.elem_type)
        return torch.from_numpy(graph.require("numpy").zeros(1, array)).dtype
    except (KeyError, TypeError) as error:
        message = "input %s of the graph is no tensor of numbers" % put.name
        raise AgentError("unsupported", message, "text and sequences are prepared outside of the graph") from error


def _read(path: str) -> Dict[str, torch.Tensor]:
    """Return the tensors in a file."""
    try:
        if path.endswith(".safetensors"):
            tensors: Dict[str, torch.Tensor] = graph.require("safetensors.torch").load_file(path)
            return tensors
        with graph.require("numpy").load(path, allow_pickle=False) as arrays:
            return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    except AgentError:
        raise
    except Exception as error:
        message = "workload.inputs.values: %s cannot be read: %s: %s" % (path, type(error).__name__, error)
        raise AgentError("workload", message, "expected a .npz or a .safetensors with one array for each input") from error


def _draw(put: Any, sizes: Mapping[str, int], generator: torch.Generator) -> torch.Tensor:
    """Return a tensor for an input of a graph."""
    kind = put.type.tensor_type
    shape = []
    for place, axis in enumerate(kind.shape.dim):
        name = axis.dim_param or "%s.%d" % (put.name, place)
        size = axis.dim_value or sizes.get(name)
        if size is None:
            message = "axis %d of input %s has no size in the graph" % (place, put.name)
            step = "'+workload.inputs.sizes={%s: 1}', or workload.inputs.values=inputs.npz" % name
            raise AgentError("workload", message, step)
        shape.append(int(size))
    dtype = _read_type(put)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0, _BELOW, shape, generator=generator).to(dtype)
