"""What a comparison of two dumps costs behind the comparison: judge, localize, advise and report, stage by stage, by records.

    python benchmarks/report.py             a table on stdout: 5 000, 20 000, 50 000 and 200 000 records, some minutes
    python benchmarks/report.py --quick     up to 20 000 records
    python benchmarks/report.py --json      one object on stdout
    python benchmarks/report.py --write docs/benchmarks

Both dumps are made here: a transformer of 48 layers, its modules and operators, forward, backward, gradients and optimizer, as
many steps as the records need. From one layer of one step on everything is over its limit, as it is after a fault. Each size
runs recipe ``compare_dumps`` in a process of its own. Forward operators are real: their outputs are what their inputs, weights
and arguments give, so that they can be computed again; gradients and updates have the right shapes and arbitrary values.

Seconds are of the processor, megabytes the peak of each stage. Seconds per million records of one table can be compared, and
are the same in every row where a stage is linear.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from capturing.curves import curve

from precflow.agent.contract import CHECKSUM, EMPTY_HEADER, checksum_of
from precflow.dumps.digest import content_id

Array = npt.NDArray[np.float32]
_SIZES = (5_000, 20_000, 50_000, 200_000)
_LAYERS = 48
_SITES = 40  # places in the source
_FAULT = 0.7  # share of the records before the fault
_STAGES = """
import json, sys, time
from pathlib import Path
from precflow.config.composition import compose
from precflow.dumps.garbage import freezing_allowed
from precflow.report.terminal import render_summary
from precflow.run.jobs import make_job
from precflow.stages.artifacts import cache_reads
from precflow.stages.registry import instances
from precflow.stages.report import read_model

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith("VmHWM"))

def measured(name, work):
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    began, clock = time.process_time(), time.perf_counter()
    result = work()
    found[name] = {"processor": time.process_time() - began, "seconds": time.perf_counter() - clock, "megabytes": peak()}
    return result

found, done, folder = {}, {}, Path(sys.argv[1])
sides = [f"{side}.dump={folder / side}" for side in ("reference", "target")]
job = make_job(compose(["+recipe=compare_dumps", *sides]), command="precflow +recipe=compare_dumps")
with freezing_allowed(), cache_reads():
    for stage in instances(job.config):
        done[stage.name] = folder / "made" / stage.name
        done[stage.name].mkdir(parents=True)
        needs = {name: done[name] for name in stage.needs}
        measured(stage.name, lambda: stage.make(job, done[stage.name], needs))
    measured("summary", lambda: render_summary(read_model(done["report"]), report_path="report.html", exit_code=1))
public = sum(path.stat().st_size for path in (done["report"] / "public").iterdir())
lines = sum(1 for _ in (done["compare"] / "measures.jsonl").open())
print(json.dumps({"stages": found, "public": public / 1e6, "measures": lines}))
"""


_SHAPE = [4, 4]  # square, so that every operator fits every other


def _layer_norm(x: Array) -> Any:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


def _softmax(x: Array) -> Any:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def _gelu(x: Array) -> Any:
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


# Operator -> its arguments besides tensors, and what it computes.
_OPERATORS: dict[str, tuple[dict[str, str], Callable[..., Any]]] = {
    "layer_norm": ({"normalized_shape": "(4,)"}, _layer_norm),
    "linear": ({}, lambda x, weight: x @ weight.T),
    "transpose": ({"dim0": "0", "dim1": "1"}, np.transpose),
    "matmul": ({}, np.matmul),
    "softmax": ({"dim": "-1"}, _softmax),
    "add": ({}, np.add),
    "gelu": ({}, _gelu),
}


class Side:
    """Writes one side: calls of a step go into one file of records and one shard.

    Args:
        folder: Where the dump goes.
        wrong: Relative error of a record by its number; 0 for the same bits.
    """

    def __init__(self, folder: Path, wrong: Any) -> None:
        self._folder = folder
        self._wrong = wrong
        self._random = np.random.default_rng(11)
        self._files: dict[str, dict[str, Any]] = {}
        self._lines: list[dict[str, Any]] = []
        self._stored: dict[str, bytes] = {}
        self._values: dict[str, Array] = {}  # of this step, by content id
        self._inputs = 0
        self._tensors = 0
        self.records = 0
        self.step = 0

    def call(self, module: str, operator: str = "", *, inputs: Any = (), phase: str = "forward", **more: Any) -> dict[str, Any]:
        """Add a call with one output and return that output, to be given to later calls.

        An operator of ``_OPERATORS`` gives what it computes from its inputs; everything else arbitrary values.
        """
        moves = operator == "transpose"
        same = more.pop("same", None)  # a module returns what the last call inside it made
        order = len(self._lines)
        index = more.pop("index", "0")
        arguments, compute = _OPERATORS.get(operator, ({}, None))
        made = compute(*(self._values[tensor["content"]] for tensor in inputs)) if compute else None
        content = same["content"] if same else self._tensor(made, exact=moves)
        output = {"index": index, "dtype": "float32", "shape": _SHAPE, "content": content, "stored": True, "weight": ""}
        ordinal = more.pop("ordinal", 0)
        about = {"order": order, "level": "api" if operator else "module", "module": module, "class": "Linear", "call": 0}
        place = {"operator": operator, "ordinal": ordinal, "phase": phase, "step": self.step, "rank": 0, "site": order % _SITES}
        given = [{**tensor, "index": str(number)} for number, tensor in enumerate(inputs)]
        rest = {"movement": moves, "compiled": False, "arguments": arguments, "inputs": given}
        self._lines.append({**about, **place, **rest, "outputs": [{**output, "source": None}]})
        self.records += 1
        self._inputs += len(given)
        return {**output, "source": same["source"] if same else [order, index]}

    def weight(self) -> dict[str, Any]:
        """Return a weight, the same on both sides."""
        content = self._tensor(None, exact=True)
        return {"dtype": "float32", "shape": _SHAPE, "content": content, "stored": True, "weight": "weight", "source": None}

    def _tensor(self, made: Array | None, *, exact: bool = False) -> str:
        array = self._random.standard_normal(_SHAPE, np.float32) if made is None else made.astype(np.float32)
        wrong = 0.0 if exact else self._wrong(self.records)
        array = np.ascontiguousarray(array * np.float32(1 + wrong) if wrong else array)
        content = content_id(array)
        self._stored[content], self._values[content] = array.tobytes(), array
        return content

    def end_step(self) -> None:
        """Write the files of a step."""
        place = self._folder / f"rank0/step{self.step}"
        place.mkdir(parents=True)
        lines = "".join(json.dumps(line) + "\n" for line in self._lines).encode()
        index = {
            key: {"dtype": "F32", "shape": _SHAPE, "data_offsets": [64 * at, 64 * at + 64]}
            for at, key in enumerate(self._stored)
        }
        text = json.dumps(index, separators=(",", ":")).encode()
        head = len(text).to_bytes(8, "little") + text
        shard = head + b"".join(self._stored.values())
        (place / "records-0.jsonl").write_bytes(lines)
        (place / "tensors-0.safetensors").write_bytes(shard)
        name = f"rank0/step{self.step}"
        self._files[f"{name}/records-0.jsonl"] = {"bytes": len(lines), "blake2b": _checksum(lines)}
        self._files[f"{name}/tensors-0.safetensors"] = {"bytes": len(shard), "index": _checksum(head)}
        self._tensors += len(self._stored)
        self._lines, self._stored, self._values = [], {}, {}
        self.step += 1

    def seal(self) -> None:
        """Write the header."""
        same = {"digest": "0" * 32, "entries": {}}  # weights and inputs
        header = {
            **EMPTY_HEADER,
            "id": self._folder.name,
            "side": self._folder.name,
            "recipe": "benchmark",
            "device": {"name": "cpu", "kind": "cpu", "description": "CPU", "emulated": False},
            "dtype": "float32",
            "determinism": {"seed": 1234},
            "weights": same,
            "inputs": same,
            "counts": {
                "calls": self.records,
                "records": self.records + self._inputs,
                "tensors": self._tensors,
                "bytes": 64 * self._tensors,
            },
            "sites": [f"model.py:{line} in forward <- train.py:12 in step" for line in range(_SITES)],
            "files": self._files,
        }
        header[CHECKSUM] = checksum_of(header)
        (self._folder / "dump.json").write_text(json.dumps(header), encoding="utf-8")


def _checksum(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def write(folder: Path, records: int, layers: int = _LAYERS) -> None:
    """Write both sides with at least so many records below ``folder``, whole steps only."""
    start = int(_FAULT * records)

    def wrong(number: int) -> float:
        """Return the error of the target: none at first, then rounding, and behind the fault everything inherits it."""
        return 1e-2 if number >= start else 1e-7 * (number % 3) if number > records // 5 else 0.0

    for name, errors in (("reference", lambda _: 0.0), ("target", wrong)):
        side = Side(folder / name, errors)
        while side.records < records:
            _step(side, layers)
        side.seal()


def _step(side: Side, layers: int) -> None:
    """Write one step of training."""
    hidden = side.call("embeddings", "embedding")
    for layer in range(layers):
        hidden = _layer(side, f"encoder.layers.{layer}", hidden)
    side.call("encoder", inputs=[hidden], same=hidden)
    side.call("", inputs=[], same=hidden)
    gradient = hidden
    gradients = []
    for layer in reversed(range(layers)):
        for part in _BACKWARD:
            module = f"encoder.layers.{layer}{part}"
            gradient = side.call(module, inputs=[gradient], phase="backward")
            if part in _WEIGHTS:
                gradients.append((module, side.call(module, phase="gradient", index="weight")))
    for module, of_weight in gradients:
        side.call(module, inputs=[of_weight], phase="optimizer", index="weight")
    side.end_step()


_BACKWARD = (
    *(f".mlp{part}" for part in (".fc2", ".act", ".fc1", "")),
    *(".norm2", ".self_attn.out", ".self_attn.v", ".self_attn.k", ".self_attn.q", ".self_attn", ".norm1", ""),
)
_WEIGHTS = frozenset({".mlp.fc2", ".mlp.fc1", ".norm2", ".self_attn.out", ".self_attn.v", ".self_attn.k", ".self_attn.q"})


def _layer(side: Side, layer: str, given: dict[str, Any]) -> dict[str, Any]:
    """Write the forward of one layer."""

    def module(part: str, operator: str, taken: dict[str, Any]) -> dict[str, Any]:
        """Write a module that runs one operator."""
        made = side.call(f"{layer}{part}", operator, inputs=[taken, side.weight()] if operator == "linear" else [taken])
        return side.call(f"{layer}{part}", inputs=[taken], same=made)

    attention = f"{layer}.self_attn"
    normed = module(".norm1", "layer_norm", given)
    query, key, value = (module(f".self_attn.{name}", "linear", normed) for name in "qkv")
    turned = side.call(attention, "transpose", inputs=[key])
    scores = side.call(attention, "matmul", inputs=[query, turned])
    weights = side.call(attention, "softmax", inputs=[scores])
    mixed = side.call(attention, "matmul", inputs=[weights, value], ordinal=1)
    out = module(".self_attn.out", "linear", mixed)
    out = side.call(attention, inputs=[normed], same=out)
    between = side.call(layer, "add", inputs=[given, out])
    normed = module(".norm2", "layer_norm", between)
    wide = module(".mlp.act", "gelu", module(".mlp.fc1", "linear", normed))
    narrow = module(".mlp.fc2", "linear", wide)
    narrow = side.call(f"{layer}.mlp", inputs=[normed], same=narrow)
    made = side.call(layer, "add", inputs=[between, narrow], ordinal=1)
    return side.call(layer, inputs=[given], same=made)


def measure(records: int, layers: int = _LAYERS) -> dict[str, Any]:
    """Return what each stage takes of the processor and of memory, and the size of ``public/``, for so many records."""
    with tempfile.TemporaryDirectory() as name:
        write(Path(name), records, layers)
        done = subprocess.run([sys.executable, "-c", _STAGES, name], check=True, capture_output=True, text=True)
    return {"records": records, **json.loads(done.stdout)}


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as Markdown."""
    lines = [_HEAD, "|" + "--:|" * 12]
    for row in rows:
        stages = row["stages"]
        each = [stages[name]["processor"] for name in ("compare", *_BEHIND)]
        memory = [stages["compare"]["megabytes"], max(stages[name]["megabytes"] for name in _BEHIND)]
        told = [*each, _behind(row), _behind(row) * 1e6 / row["records"]]
        numbers = " | ".join(f"{value:.1f}" for value in told)
        lines.append(f"| {row['records']:,} | {numbers} | {memory[0]:.0f} | {memory[1]:.0f} | {row['public']:.1f} |")
    return "\n".join(lines) + "\n"


_HEAD = (
    "| records | compare, s | judge | localize | advise | report | summary | these five | per million "
    "| compare, MB | five, MB | public, MB |"
)
_BEHIND = ("judge", "localize", "advise", "report", "summary")


def _behind(row: dict[str, Any]) -> float:
    """Return the seconds of the processor that all stages behind the comparison take."""
    return sum(float(row["stages"][name]["processor"]) for name in _BEHIND)


def main() -> None:
    """Measure, and say it as asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    rows = [measure(records) for records in _SIZES if records <= 20_000 or not options.quick]
    if options.write:
        options.write.mkdir(parents=True, exist_ok=True)
        (options.write / "report.md").write_text(table(rows))
        series = {"judge, localize, advise, report and summary": [(row["records"], _behind(row)) for row in rows]}
        (options.write / "report.svg").write_text(curve("Behind the comparison", "records", "seconds", series))
    print(json.dumps(rows) if options.json else table(rows), end="" if not options.json else "\n")


if __name__ == "__main__":
    main()
