"""Action ``dump`` of a side that runs in ONNX Runtime: torch runs once in float32 for the pairs, the graph for the numbers.

The records have torch's names and arguments, and what the graph computed in place of torch's values, so every stage behind
works as for two runs of torch. What the graph does not have has no record: ``fused`` in the header says whose output shows it.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict, deque
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, cast

import torch

from precflow.agent.capture.nesting import leaves
from precflow.agent.contract import EMPTY_HEADER, FORWARD, MODULE, OUTPUT, ROOT_MODULE, UNCHECKED, Identity, identity_text
from precflow.agent.converted import graph
from precflow.agent.converted.graph import Feeds
from precflow.agent.converted.links import UPGRADE, Chain, examine
from precflow.agent.converted.pairing import Pairs, TorchRecord, pair
from precflow.agent.failures import AgentError
from precflow.agent.measure.content_id import content_id, dtype_name
from precflow.agent.session import rank_group
from precflow.agent.session.dump import explain_user_errors, make_random_numbers, open_writer, record
from precflow.agent.session.workload_model import RunContext, Workload, prepare
from precflow.agent.workloads.onnx_graph import Graph
from precflow.agent.workloads.resolve import extend_path

if TYPE_CHECKING:
    from precflow.agent.devices.protocol import Device
    from precflow.agent.dump.writer import Writer
    from precflow.agent.events import Events
    from precflow.agent.request import Request

Key = Tuple[int, str]  # order of a call in torch's run, and path of its output


class TorchRun(NamedTuple):
    """A run of torch in float32, as it was recorded.

    Attributes:
        lines: Its calls.
        tensors: Content id -> tensor.
        sites: Call sites.
        header: Header of its dump.
    """

    lines: List[Dict[str, Any]]
    tensors: Dict[str, torch.Tensor]
    sites: List[str]
    header: Dict[str, Any]


class _Memory:
    """Takes what a recorder writes, and keeps it in memory: see :class:`precflow.agent.dump.writer.Writer`."""

    def __init__(self) -> None:
        self.folder = ""
        self.failure = None
        self.sites: List[str] = []
        self.lines_: List[Dict[str, Any]] = []
        self.tensors: Dict[str, torch.Tensor] = {}

    def append(self, data: bytes, calls: int, records: int) -> None:
        """Keep lines."""
        del calls, records
        self.lines_ += [json.loads(line) for line in data.splitlines()]

    def tensor(self, key: str, tensor: torch.Tensor, *, owned: bool = False) -> bool:
        """Keep a copy of a tensor."""
        del owned
        if key not in self.tensors:
            self.tensors[key] = tensor.detach().cpu().clone()
        return True

    def stored(self, key: str) -> bool:
        """Tell whether a tensor is here."""
        return key in self.tensors

    def complete(self, step: int, rank: int) -> bool:
        """Tell that no step is here already."""
        del step, rank
        return False

    def open_step(self, step: int, rank: int) -> None:
        """Do nothing: there is one step."""

    def close_step(self, step: int, rank: int) -> None:
        """Do nothing."""

    def note_running(self, text: str) -> None:
        """Do nothing: nobody reads it."""


def dump(request: Request, device: Device, where: torch.device, events: Events) -> None:
    """Run the request in ONNX Runtime and write the dump into ``request.output``.

    Raises:
        AgentError: Of every kind; ``unsupported`` also for what ONNX Runtime cannot do, with what can be done instead.
    """
    _check(request)
    for module in ("numpy", "onnx", "onnxruntime"):
        graph.require(module)
    with open_writer(request, where, request.output) as writer:
        extend_path(request.import_paths, request.workload)
        with explain_user_errors():
            run = RunContext(_as_torch(request), device, where, events, make_random_numbers(request))
            workload = prepare(run)
            made = record_torch(run, workload)
        with events.time_part("export", "exporting the graph"):
            plain = make_graph(request, workload)
        feeds = Feeds(make_inputs(plain, workload.inputs))
        with events.time_part("pairs", "pairing the graph with the run of torch"):
            records = list_records(made)
            pairs = pair(records, plain, order_outputs(made), lambda forced: _run_plain(plain, feeds, forced))
        with events.time_part("graph", "running the graph"):
            chain = make_chain(request, plain)
            final = chain.half
            values = graph.run(final, feeds, provider=request.conversion.provider)
            again = graph.run(final, feeds, provider=request.conversion.provider) if request.determinism.repeat else None
            wider = _keeps_more_digits(request, final, feeds, values)
        with events.time_part("links", "comparing each link of the conversion"):
            links = examine(chain, feeds, pairs, records)
            if isinstance(workload.model, Graph):
                links[0] = links[0]._replace(link=UPGRADE)
        shown = not wider and not request.conversion.keep_float32
        written = write_lines(request, made, pairs, values, writer, shown=shown)
        header = {
            **made.header,
            "conversion": {**describe(request, plain, final), "wider": wider, "links": [link.to_plain() for link in links]},
            "declared": request.declared,
            "dtype": request.dtype,
            "capture": request.capture.to_plain(),
            "sites": made.sites,
            "repeat": _compare_runs(made, pairs, values, again, written),
            "fused": find_fused(made, written),
        }
        rank_group.seal(request, writer, {**header, "seconds": dict(events.seconds)})


def _check(request: Request) -> None:
    """Refuse what a converted side cannot do.

    Raises:
        AgentError: ``bad_request`` or ``unsupported``.
    """
    wrong = [
        (bool(request.workload.get("script")), "a script is run by torch", "give workload.model and workload.inputs"),
        (request.capture.phase != (FORWARD,), "a converted model has no backward", "capture.phase=[forward]"),
        (request.capture.step != (0,), "a converted model has one step", "capture.step=[0]"),
        (request.ranks > 1, "a converted model runs in one process", "target.ranks=1"),
        (
            request.capture.detail != "tensors" or bool(request.capture.rules),
            "a converted model is compared by its tensors",
            "capture=tensors, without capture.rules",
        ),
        (
            request.dtype not in {"float32", "float16"},
            "ONNX Runtime does not run %s here" % request.dtype,
            "target.dtype=float16 or float32",
        ),
    ]
    for holds, message, step in wrong:
        if holds:
            raise AgentError("unsupported", message, step)


def _as_torch(request: Request) -> Request:
    """Return the request for the run of torch that the graph is paired with: everything, once, in float32."""
    capture = request.capture._replace(
        level=("module", "api"), phase=(FORWARD,), scope=("*",), step=(0,), rank=(), rules=(), budget=0, keep_last=0
    )
    determinism = request.determinism._replace(repeat=False, observer=UNCHECKED)
    return request._replace(dtype="float32", capture=capture, determinism=determinism, resume=False)


def record_torch(run: RunContext, workload: Workload) -> TorchRun:
    """Run a workload in torch and record all of it."""
    memory = _Memory()
    header = record(run, workload, cast("Writer", memory))
    workload.restore()
    return TorchRun(memory.lines_, memory.tensors, list(header["sites"]), header)


def make_graph(request: Request, workload: Workload) -> Any:
    """Return the graph in float32: exported, or the one that is given."""
    settings = request.conversion
    if settings.file:
        return graph.prepare(graph.load(settings.file))
    with tempfile.TemporaryDirectory() as folder:
        inputs = workload.copy_inputs(torch.float32, torch.device("cpu"))
        return graph.prepare(graph.export(workload.model, inputs, settings, folder))


def make_inputs(model: Any, inputs: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the workload's tensors by the names that the graph has for them, NumPy: by name, or else by their order.

    Raises:
        AgentError: ``workload``: the graph has other inputs.
    """
    weights = {tensor.name for tensor in model.graph.initializer}
    wanted = [put.name for put in model.graph.input if put.name not in weights]
    given = {name: value.detach().cpu() for name, value in leaves(inputs) if isinstance(value, torch.Tensor)}
    if not set(wanted) <= set(given) and len(wanted) != len(given):
        message = "the graph has the inputs %s, and the workload %s" % (", ".join(wanted), ", ".join(given))
        raise AgentError("workload", message, "name workload.inputs as the graph does, or give as many in its order")
    named = given if set(wanted) <= set(given) else dict(zip(wanted, given.values()))
    return {name: named[name].numpy() for name in wanted}


def make_chain(request: Request, plain: Any) -> Chain:
    """Return the graphs up to the one that is judged: optimised, and in the side's type."""
    settings = request.conversion
    made = plain if settings.optimise == "none" else graph.prepare(graph.optimise(plain, settings.optimise, settings.provider))
    # In this order, as ONNX Runtime's own tools do it: for the CPU it would turn float16 back into float32 while it optimises.
    half = graph.to_half(made, settings.keep_float32) if request.dtype == "float16" else made
    if half is not made and settings.provider == graph.CPU:
        half = graph.round_each(half)
    return Chain(plain, made, half, settings.provider, settings.keep_float32)


def _keeps_more_digits(request: Request, final: Any, feeds: Feeds, values: Mapping[str, Any]) -> bool:
    """Tell whether the device has more digits between nodes than it shows; the CPU rounds each: see :func:`make_chain`."""
    provider = request.conversion.provider
    return request.dtype == "float16" and provider != graph.CPU and graph.keeps_more_digits(final, feeds, values, provider)


def _run_plain(plain: Any, feeds: Feeds, forced: Mapping[str, Any]) -> Dict[str, Any]:
    return graph.run(plain, feeds._replace(forced=forced))


def list_records(made: TorchRun) -> List[TorchRecord]:
    """Return the outputs of all calls whose tensors are known."""
    records = []
    for line in made.lines:
        for output in line["outputs"]:
            tensor = made.tensors.get(output["content"])
            if tensor is None or tensor.is_complex() or not tensor.numel():
                continue
            value = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
            key = (line["order"], output["index"])
            records.append(TorchRecord(key, line["module"], line["operator"], line["level"], value, name_record(line, output)))
    return records


def name_record(line: Mapping[str, Any], output: Mapping[str, Any]) -> str:
    """Return the identity text of an output."""
    place = (line["module"], line["call"], line["operator"], line["ordinal"], line["phase"])
    return identity_text(Identity(*place, OUTPUT, output["index"], line["step"], line["rank"]))


def order_outputs(made: TorchRun) -> List[Key]:
    """Return the keys of the model's own outputs."""
    whole = [line for line in made.lines if line["level"] == MODULE and line["module"] == ROOT_MODULE]
    return [(line["order"], output["index"]) for line in whole for output in line["outputs"]]


def write_lines(  # noqa: PLR0913  two runs, what pairs them, and where they go
    request: Request, made: TorchRun, pairs: Pairs, values: Mapping[str, Any], writer: Writer, *, shown: bool
) -> Set[Key]:
    """Write the records that the graph has, with its values; return their keys.

    Args:
        request: What to keep.
        made: Run of torch.
        pairs: Which tensor is which record.
        values: Tensors of the graph by name.
        writer: Takes the records.
        shown: A node in float16 reads what these values are. If not, inputs are left out: what was read had more digits.
    """
    names = {key: name for key, name in pairs.tensors.items() if name in values}
    wanted = [line for line in made.lines if _is_wanted(request, line)]
    orders = {line["order"] for line in wanted if any((line["order"], put["index"]) in names for put in line["outputs"])}
    by_order = {line["order"]: line for line in made.lines}
    writer.open_step(0, 0)
    writer.sites.extend(made.sites)
    written, half = set(), request.dtype == "float16"

    def find_value(key: Optional[Key], put: Mapping[str, Any]) -> Optional[torch.Tensor]:
        """Return the graph's value of a tensor in the shape that torch has it in; ``None`` if there is none."""
        if key not in names or values[names[key]].size != _count(put["shape"]):
            return None
        return torch.from_numpy(values[names[key]].copy()).reshape(put["shape"])

    for line in wanted:
        if line["order"] not in orders:
            continue
        store = not line["movement"]
        outputs = []
        for put in line["outputs"]:
            value = find_value((line["order"], put["index"]), put)
            if value is not None:
                outputs.append(_store(put, value, writer, store=store))
                written.add((line["order"], put["index"]))
        inputs = []
        for put in line["inputs"]:
            kept = {**put, "source": _find_kept(put["source"], orders, by_order)}
            value = find_value(tuple(put["source"]), put) if put["source"] else made.tensors.get(put["content"])
            if value is not None and value.dtype == torch.float32 and half:
                value = value.half()  # a weight or an input of the model
            if half and not shown:
                value = None
            inputs.append(_leave_out(kept, half=half) if value is None else _store(kept, value, writer, store=store))
        writer.call({**line, "inputs": inputs, "outputs": outputs})
    writer.close_step(0, 0)
    return written


def _store(put: Mapping[str, Any], value: torch.Tensor, writer: Writer, *, store: bool) -> Dict[str, Any]:
    """Return the record of a tensor, which is in the dump then."""
    content = content_id(value)
    return {
        **{name: put[name] for name in ("index", "source", "weight")},
        "dtype": dtype_name(value.dtype),
        "shape": list(value.shape),
        "content": content,
        "stored": store and writer.tensor(content, value, owned=True),
    }


def _leave_out(put: Mapping[str, Any], *, half: bool) -> Dict[str, Any]:
    """Return the record of an input that the graph does not have."""
    dtype = "float16" if half and put["dtype"] == "float32" else put["dtype"]
    return {
        **{name: put[name] for name in ("index", "source", "weight", "shape")},
        "dtype": dtype,
        "content": "",
        "stored": False,
    }


def _is_wanted(request: Request, line: Mapping[str, Any]) -> bool:
    capture = request.capture
    return line["level"] in capture.level and any(fnmatchcase(line["module"], pattern) for pattern in capture.scope)


def _count(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _find_kept(
    source: Optional[Sequence[Any]], orders: Set[int], lines: Mapping[int, Mapping[str, Any]]
) -> Optional[List[Any]]:
    """Return the call that a tensor comes from, past those that are not in the graph."""
    while source is not None and source[0] not in orders:
        source = next((put["source"] for put in lines[source[0]]["inputs"] if put["source"]), None)
    return None if source is None else list(source)


def find_fused(made: TorchRun, written: Set[Key]) -> Dict[str, str]:
    """Return module that the graph computes inside of another one -> the module whose output is the first to show it."""
    # By content: a module returns what a call inside it has made, and a removed dropout what it was given.
    readers: Dict[str, List[int]] = defaultdict(list)
    by_order = {line["order"]: line for line in made.lines}
    modules = {}
    for line in made.lines:
        for put in line["inputs"]:
            readers[put["content"]].append(line["order"])
        if line["level"] == MODULE and all((line["order"], put["index"]) in written for put in line["outputs"]):
            modules[line["module"]] = line["order"]
    fused: Dict[str, str] = {}
    for line in made.lines:
        missing = [put["content"] for put in line["outputs"] if (line["order"], put["index"]) not in written]
        if not missing or line["module"] in fused or (line["movement"] and line["level"] != MODULE):
            continue
        todo, seen = deque(missing), set(missing)
        while todo and line["module"] not in fused:
            for order in readers[todo.popleft()]:
                behind = by_order[order]
                if behind["module"] in modules and behind["module"] not in {line["module"], ROOT_MODULE}:
                    fused[line["module"]] = behind["module"]
                    break
                new = [put["content"] for put in behind["outputs"] if put["content"] not in seen]
                seen.update(new)
                todo.extend(new)
    return fused


def describe(request: Request, plain: Any, final: Any) -> Dict[str, Any]:
    """Return what the header says of the conversion."""
    settings = request.conversion
    return {
        "runtime": settings.runtime,
        "provider": settings.provider,
        "exporter": "" if settings.file else settings.exporter,
        "optimise": settings.optimise,
        "keep_float32": list(settings.keep_float32),
        "versions": {name: graph.require(name).__version__ for name in ("onnx", "onnxruntime")},
        "nodes": [len(plain.graph.node), len(final.graph.node)],
        "inside_unseen": graph.find_control_flow(plain),
        "elsewhere": graph.list_elsewhere(final, settings.provider),
    }


def _compare_runs(
    made: TorchRun, pairs: Pairs, first: Mapping[str, Any], again: Optional[Mapping[str, Any]], written: Set[Key]
) -> Dict[str, Any]:
    """Return what a second run of the graph has shown, bit for bit."""
    if again is None:
        return dict(EMPTY_HEADER["repeat"])
    different = [
        name_record(line, put)
        for line in made.lines
        for put in line["outputs"]
        if (line["order"], put["index"]) in written
        and first[pairs.tensors[line["order"], put["index"]]].tobytes()
        != again[pairs.tensors[line["order"], put["index"]]].tobytes()
    ]
    return {"checked": True, "records": len(written), "by": ["bits"], "different": different}
