"""The chain from torch to what runs, link by link: which one breaks, and at which node.

::

    torch  --exporter-->  graph  --optimiser-->  fused graph  --half-->  graph in float16  --runtime-->  what the device does

Two neighbours are compared at the tensors that both have, *forced*: every node is given torch's values, so an error shows where
it is made and nowhere behind. How much two right computations differ there is measured: the graph runs once more with torch's
values changed by a rounding, and what that changes, times a margin, is the limit. Float16 has a fixed limit, for what it is
to find are the nodes that 11 bits are too few for.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from precflow.agent.converted import graph
from precflow.agent.converted.graph import Feeds, require
from precflow.agent.converted.pairing import Pairs, TorchRecord, relative_l2
from precflow.agent.failures import AgentError

EXPORTER, OPTIMISER, HALF, RUNTIME = LINKS = ("exporter", "optimiser", "half", "runtime")
UPGRADE = "upgrade"  # in place of the exporter, where another graph stands for torch
AGREES, BROKEN, NOT_THERE, UNKNOWN = ("agrees", "broken", "not there", "unknown")
ROUNDING = 2.0**-23  # of float32: how much torch's values are changed to see what rounding does
MARGIN = 16  # times what that changes
LEAST_LIMIT = 2e-6  # relative L2 of two float32 results of one operator
HALF_LIMIT = 2.0**-8  # relative L2 of an operator in float16: eight times its rounding
_LARGEST_HALF = 65504.0
_MOST_KEPT = 3  # segments that are tried in float32

Run = Callable[[Any, Feeds, str], Mapping[str, Any]]


class Fault(NamedTuple):
    """A tensor that differs between two neighbours although both were given the same.

    Attributes:
        tensor: Its name in the graph.
        record: Identity text of torch's record of it.
        error: Relative L2.
        limit: What it may be.
        nodes: The nodes that compute it from torch's values: ``name``, ``operator``.
        kept: If these stayed in float32: names of ``nodes``, and the error of the model's outputs ``before`` and ``after``.
    """

    tensor: str
    record: str
    error: float
    limit: float
    nodes: List[Dict[str, str]]
    kept: Dict[str, Any]


class Link(NamedTuple):
    """One link.

    Attributes:
        link: One of ``LINKS``, or ``UPGRADE`` in place of the first.
        state: ``agrees``, ``broken``, ``not there`` (nothing was done), or ``unknown``: with the reason in ``why``.
        why: That in words.
        tensors: How many were compared.
        worst: Largest share of its limit that an error takes.
        error: Relative L2 of the model's outputs between the neighbours, where nothing is forced; ``None`` if not finite.
        faults: What differs, in the graph's order.
    """

    link: str
    state: str
    why: str
    tensors: int
    worst: float
    error: Any
    faults: List[Fault]

    def to_plain(self) -> Dict[str, Any]:
        """Return it as plain data."""
        faults = [{**fault._asdict(), "error": _finite(fault.error)} for fault in self.faults]
        return {**self._asdict(), "worst": _finite(self.worst), "faults": faults}


def _finite(number: float) -> Optional[float]:
    """Return what JSON has a word for."""
    return number if number < float("inf") else None


class Chain(NamedTuple):
    """The graphs of a conversion.

    Attributes:
        plain: As exported.
        optimised: As ONNX Runtime fuses it; the same object if it is not to.
        half: In float16; the same object as before if it is not to be.
        provider: ONNX Runtime's name of the device that it runs on.
        keep: What stays in float32.
    """

    plain: Any
    optimised: Any
    half: Any
    provider: str
    keep: Sequence[str]


def examine(chain: Chain, feeds: Feeds, pairs: Pairs, records: Sequence[TorchRecord], run: Run = graph.run_on) -> List[Link]:
    """Compare the neighbours of a chain and return all four links.

    Args:
        chain: The graphs.
        feeds: What goes in; nothing forced.
        pairs: Which tensor is which record.
        records: Of torch.
        run: Runs a graph on a device.
    """
    known = {record.key: record for record in records}
    named: Dict[str, TorchRecord] = {}
    for key, name in pairs.tensors.items():
        if known[key].value.dtype.kind == "f":
            named.setdefault(name, known[key])
    return _Examination(chain, feeds, named, run).examine()


class _Examination:
    """The comparison of one chain.

    Args:
        chain: The graphs.
        feeds: What goes in.
        named: Name of a tensor -> torch's record of it.
        run: Runs a graph on a device.
    """

    def __init__(self, chain: Chain, feeds: Feeds, named: Mapping[str, TorchRecord], run: Run) -> None:
        self._chain, self._feeds, self._run = chain, feeds, run
        self._free = self._run(chain.plain, feeds, graph.CPU)
        self._named = {name: record for name, record in named.items() if name in self._free}
        self._gold = {
            name: record.value.reshape(self._free[name].shape).astype(self._free[name].dtype)
            for name, record in self._named.items()
        }
        self._ends = [output.name for output in chain.plain.graph.output]
        self._types = {id(model): self._read_types(model) for model in {id(each): each for each in chain[:3]}.values()}

    def _read_types(self, model: Any) -> Dict[str, Any]:
        """Return the type of every tensor of a graph."""
        values = self._free if model is self._chain.plain else self._run(model, self._feeds, graph.CPU)
        return {name: value.dtype for name, value in values.items()}

    def examine(self) -> List[Link]:
        """Return the links."""
        exporter, runtime = self._examine_exporter()
        return [exporter, self._examine_optimiser(), self._examine_half(), self._examine_runtime(runtime)]

    def _force(self, model: Any, names: Iterable[str], *, provider: str = graph.CPU, change: float = 0.0) -> Mapping[str, Any]:
        """Run a graph with torch's values in place of some tensors, changed by so much of each."""
        numpy = require("numpy")
        random = numpy.random.default_rng(0)
        forced, types = {}, self._types[id(model)]
        for name in names:
            value = self._gold[name]
            with numpy.errstate(over="ignore"):
                if change:
                    value = (value * (1 + change * random.uniform(-1, 1, value.shape))).astype(value.dtype)
                if types[name] == numpy.float16:  # fills of masks are the largest number there
                    value = value.clip(-_LARGEST_HALF, _LARGEST_HALF)
            forced[name] = numpy.asarray(value, types[name])  # a number without axes has become one of NumPy's scalars
        return self._run(model, self._feeds._replace(forced=forced), provider)

    def _cut(self, *models: Any) -> List[str]:
        """Return the paired tensors that all graphs have, in order."""
        made = [{name for node in model.graph.node for name in node.output} for model in models]
        order = [name for node in models[0].graph.node for name in node.output]
        return [name for name in order if name in self._gold and all(name in names for names in made)]

    def _limit(self, cut: Sequence[str], base: Mapping[str, Any]) -> Dict[str, float]:
        """Return how far apart two right computations of each tensor may be in float32."""
        changed = self._force(self._chain.plain, cut, change=ROUNDING)
        return {name: max(MARGIN * relative_l2(changed[name], base[name]), LEAST_LIMIT) for name in cut}

    def _find_faults(
        self, model: Any, cut: Sequence[str], here: Mapping[str, Any], there: Mapping[str, Any], limits: Mapping[str, float]
    ) -> Tuple[List[Fault], float]:
        faults, worst = [], 0.0
        for name in cut:
            error = relative_l2(there[name], here[name])
            worst = max(worst, error / limits[name])
            if error > limits[name]:
                between = [node for node in graph.between(model, name, cut) if not node.name.endswith(graph.READ)]
                nodes = [{"name": node.name, "operator": node.op_type} for node in between]
                faults.append(Fault(name, self._named[name].name, error, limits[name], nodes, {}))
        return faults, worst

    def _conclude(self, link: str, cut: Sequence[str], faults: List[Fault], worst: float, free: Any) -> Link:
        missing = [name for name in self._ends if name not in cut and self._free[name].dtype.kind == "f"]
        if faults:
            return Link(link, BROKEN, "", len(cut), worst, free, faults)
        if missing:
            why = "no record of torch is %s, which the graph returns" % ", ".join(missing)
            return Link(link, UNKNOWN, why, len(cut), worst, free, [])
        return Link(link, AGREES, "", len(cut), worst, free, [])

    def _compare_ends(self, here: Mapping[str, Any], there: Mapping[str, Any]) -> Any:
        """Return the largest difference of the model's outputs, ``None`` if it is not finite or there are none."""
        ends = [name for name in self._ends if name in here and name in there and here[name].dtype.kind == "f"]
        error = max((relative_l2(there[name], here[name]) for name in ends), default=float("inf"))
        return error if error < float("inf") else None

    def _examine_exporter(self) -> Tuple[Link, List[Fault]]:
        """Compare torch and the graph; return the link, and the faults that are the runtime's."""
        plain = self._chain.plain
        cut = self._cut(plain)
        base = self._force(plain, cut)
        faults, worst = self._find_faults(plain, cut, self._gold, base, self._limit(cut, base))
        of_runtime = [fault for fault in faults if self._is_right_by_definition(fault, cut)]
        own = [fault for fault in faults if fault not in of_runtime]
        return self._conclude(EXPORTER, cut, own, worst, self._compare_ends(self._gold, self._free)), of_runtime

    def _is_right_by_definition(self, fault: Fault, cut: Sequence[str]) -> bool:
        """Tell whether the nodes are right as ONNX defines them, so that it is the runtime that computes them otherwise."""
        reference = require("onnx.reference")
        piece, inputs = graph.extract(self._chain.plain, fault.tensor, cut)
        given = {**self._feeds.inputs, **self._gold}
        if not all(name in given or name in self._free for name in inputs):
            return False
        try:
            evaluator = reference.ReferenceEvaluator(piece)
            (value,) = evaluator.run(None, {name: given.get(name, self._free.get(name)) for name in inputs})
        except Exception:  # noqa: BLE001  ONNX defines an operator that its evaluator does not have: nothing follows
            return False
        return value.size == self._gold[fault.tensor].size and relative_l2(value, self._gold[fault.tensor]) <= fault.limit

    def _examine_optimiser(self) -> Link:
        """Compare the graph before and after fusion."""
        plain, optimised = self._chain.plain, self._chain.optimised
        if optimised is plain:
            return Link(OPTIMISER, NOT_THERE, "the graph was not optimised", 0, 0.0, 0.0, [])
        cut = self._cut(optimised, plain)
        here, there = self._force(plain, cut), self._force(optimised, cut)
        faults, worst = self._find_faults(optimised, cut, here, there, self._limit(cut, here))
        free = self._compare_ends(self._free, self._run(optimised, self._feeds, graph.CPU))
        return self._conclude(OPTIMISER, cut, faults, worst, free)

    def _examine_half(self) -> Link:
        """Compare the graph in float32 and in float16."""
        before, half = self._chain.optimised, self._chain.half
        if half is before:
            return Link(HALF, NOT_THERE, "the graph stays in float32", 0, 0.0, 0.0, [])
        cut = self._cut(half, before)
        here, there = self._force(before, cut), self._force(half, cut)
        limits = dict.fromkeys(cut, HALF_LIMIT)
        faults, worst = self._find_faults(half, cut, here, there, limits)
        exact = self._run(before, self._feeds, graph.CPU)
        free = self._compare_ends(exact, self._run(half, self._feeds, graph.CPU))
        hardest = sorted(faults, key=lambda fault: -fault.error)[:_MOST_KEPT]
        faults = [fault._replace(kept=self._keep(fault, exact, free)) if fault in hardest else fault for fault in faults]
        return self._conclude(HALF, cut, faults, worst, free)

    def _keep(self, fault: Fault, exact: Mapping[str, Any], before: Any) -> Dict[str, Any]:
        """Return what keeping the nodes of a fault in float32 brings, with those that make what they read if that is better."""
        model = self._chain.optimised
        made = {name: node for node in model.graph.node for name in node.output}
        own = [node["name"] for node in fault.nodes if node["operator"] != "Cast"]
        nodes = {node.name: node for node in model.graph.node}
        above = [made[name].name for word in own if word in nodes for name in nodes[word].input if name in made]
        tried = []
        for words in dict.fromkeys((tuple(own), tuple(dict.fromkeys([*above, *own])))):
            keep = [word for word in words if word in nodes]
            try:
                half = graph.round_each(graph.to_half(model, [*self._chain.keep, *keep]))
                after = self._compare_ends(exact, self._run(half, self._feeds, graph.CPU))
            except AgentError:  # the converter makes no valid graph of it
                continue
            tried.append(
                (float("inf") if after is None else after, len(keep), {"nodes": keep, "before": before, "after": after})
            )
        return min(tried, key=lambda each: each[:2])[2] if tried else {}

    def _examine_runtime(self, of_cpu: List[Fault]) -> Link:
        """Compare the same graph on the CPU and on its device; what the CPU itself computes otherwise is the runtime's too."""
        half, provider = self._chain.half, self._chain.provider
        if of_cpu:
            return Link(RUNTIME, BROKEN, "ONNX defines these nodes otherwise", len(of_cpu), 0.0, None, of_cpu)
        if provider == graph.CPU:
            return Link(RUNTIME, NOT_THERE, "the graph runs on the CPU, as all comparisons here do", 0, 0.0, 0.0, [])
        cut = self._cut(half)
        here, there = self._force(half, cut), self._force(half, cut, provider=provider)
        in_half = half is not self._chain.optimised
        limits = dict.fromkeys(cut, HALF_LIMIT) if in_half else self._limit(cut, self._force(self._chain.plain, cut))
        faults, worst = self._find_faults(half, cut, here, there, limits)
        free = self._compare_ends(self._run(half, self._feeds, graph.CPU), self._run(half, self._feeds, provider))
        return self._conclude(RUNTIME, cut, faults, worst, free)
