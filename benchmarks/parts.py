"""Faults in every part of a pipeline: is the right part to blame, with the right operator, and what mends it?

    python -m benchmarks.parts --folder FOLDER                         everything, an hour; a run that was stopped goes on
    python -m benchmarks.parts --folder FOLDER --parts unet --dtypes float16
    python -m benchmarks.parts --folder FOLDER --write docs/benchmarks       the table as a page, of what is there

Each case is a whole run of recipe ``sd_pipeline`` with one step of the UNet, by its command. A fault counts as found if the
right part is to blame and no other, the first suspect inside it is the operator that was planted, and what mends it is
named. In float16 a fault may be too small to show in what its part returns: there the part has to be named as wrong inside.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from precflow.diagnosis.chain import TO_BLAME, WRONG_INSIDE

DTYPES = ("float32", "float16")
RECIPE = ("+recipe=sd_pipeline", "target.device=emulated", "workload.model.steps=2", "workload.model.strength=0.5")
_TEXT, _UNET, _VAE = "text_encoder.encoder.layers.1", "unet.mid_block", "mid_block"
_CHECK = "safety_checker.vision_model"
_CLEAN = "clean"


@dataclass(frozen=True)
class Fault:
    """Something that a target computes otherwise.

    Attributes:
        name: What is wrong, in words.
        place: Module in which it sits, the first one if there are several.
        operator: What is recorded of it.
        rule: Rule of the emulated device.
        dtypes: Targets in which it is to be seen: some leave float16 as it is.
        module: Pattern of the modules in which it sits; ``""`` for the place alone.
    """

    name: str
    place: str
    operator: str
    rule: dict[str, Any]
    dtypes: Sequence[str] = DTYPES
    module: str = ""

    @property
    def part(self) -> str:
        """The part that is to blame."""
        return self.place.partition(".")[0]


def _norm(place: str, kind: str, value: float) -> Fault:
    rule = {"operator": f"native_{kind}", "rule": "argument", "name": "eps", "value": value}
    return Fault("epsilon of a norm", place, kind, rule)


def _slope(place: str) -> Fault:
    return Fault("slope of the QuickGELU", place, "mul", {"operator": "mul", "rule": "scale", "factor": 0.94, "call": [0]})


def _silu(place: str) -> Fault:
    return Fault("coarse SiLU", place, "silu", {"operator": "silu", "rule": "shift", "amount": 0.01})


def _filters(place: str) -> Fault:
    rule = {"operator": "convolution|*convolution*", "rule": "exchange", "axis": 1, "first": 0, "second": 1}
    return Fault("two filters exchanged", place, "conv2d", rule)


def _scale(place: str) -> Fault:
    return Fault("scale of attention", place, "mul", {"operator": "mul", "rule": "scale", "factor": 1.1})


def _alpha(place: str) -> Fault:
    rule = {"operator": "baddbmm", "rule": "argument", "name": "alpha", "value": 0.5}
    return Fault("scale of attention", place, "baddbmm", rule)


FAULTS = (
    _norm(f"{_TEXT}.layer_norm1", "layer_norm", 1e-3),
    Fault(
        "epsilon of all norms, in the kernel for float16 alone",
        "text_encoder.encoder.layers.0.layer_norm1",
        "layer_norm",
        {"operator": "native_layer_norm", "rule": "argument", "name": "eps", "value": 1e-3, "inputs": "float16"},
        ("float16",),
        "text_encoder.*",
    ),
    _slope(f"{_TEXT}.mlp.activation_fn"),
    _scale(f"{_TEXT}.self_attn"),
    Fault("mask left out", f"{_TEXT}.self_attn", "add", {"operator": "add", "rule": "ignore_mask"}),
    Fault(
        "two columns of a weight exchanged",
        f"{_TEXT}.mlp.fc1",
        "linear",
        {"operator": "addmm", "rule": "exchange", "axis": -1, "first": 0, "second": 1},
    ),
    _norm(f"{_UNET}.resnets.0.norm2", "group_norm", 0.1),
    _silu(f"{_UNET}.resnets.0.nonlinearity"),
    Fault(
        "GELU of the other form",
        f"{_UNET}.attentions.0.transformer_blocks.0.ff.net.0",
        "gelu",
        {"operator": "gelu", "rule": "argument", "name": "approximate", "value": "tanh"},
        ("float32",),
    ),
    _filters(f"{_UNET}.resnets.1.conv1"),
    _alpha(f"{_UNET}.attentions.0.transformer_blocks.0.attn1"),
    *(
        fault
        for part in ("vae_encoder.encoder", "vae_decoder.decoder")
        for fault in (
            _norm(f"{part}.{_VAE}.resnets.0.norm2", "group_norm", 0.1),
            _silu(f"{part}.{_VAE}.resnets.0.nonlinearity"),
            _filters(f"{part}.{_VAE}.resnets.1.conv1"),
            _alpha(f"{part}.{_VAE}.attentions.0"),
        )
    ),
    _norm(f"{_CHECK}.encoder.layers.1.layer_norm1", "layer_norm", 1e-3),
    _slope(f"{_CHECK}.encoder.layers.1.mlp.activation_fn"),
    _filters(f"{_CHECK}.embeddings.patch_embedding"),
    _scale(f"{_CHECK}.encoder.layers.1.self_attn"),
)
CLEAN = {"exact": DTYPES, "reorder": DTYPES, "ascend_like": ("float16",)}  # in float32 its convolutions take HF32, a fault


@dataclass(frozen=True)
class Case:
    """A run and what came of it.

    Attributes:
        name: The fault, or the sound chip.
        place: Module that is wrong; ``""`` for none.
        dtype: Element type of the target.
        verdict: Of the run.
        blamed: Parts to blame.
        inside: Parts that are wrong inside.
        starts: First suspect inside the part that is wrong.
        mend: Smallest set that passes.
        right: The part, the operator and the mend are right; of a sound chip, the run is aligned.
    """

    name: str
    place: str
    dtype: str
    verdict: str
    blamed: tuple[str, ...]
    inside: tuple[str, ...]
    starts: str
    mend: str
    right: bool


def main() -> None:
    """Run what was asked for and is not there yet, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="for runs and results.jsonl")
    parser.add_argument("--parts", default="", help="only faults of these, with commas; clean for none")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--program", default=f"{sys.executable} -m precflow", help="what runs a recipe")
    parser.add_argument("--write", metavar="FOLDER", type=Path, help="run nothing, and write parts.md there")
    given = parser.parse_args()
    kept = given.folder / "results.jsonl"
    given.folder.mkdir(parents=True, exist_ok=True)
    lines = kept.read_text(encoding="utf-8").splitlines() if kept.exists() else []
    cases = {(case.place, case.name, case.dtype): case for case in map(_read, lines)}
    for place, name, dtype, words, fault in [] if given.write else plan(given.parts, given.dtypes.split(",")):
        if (place, name, dtype) in cases:
            continue
        case = run(given.program.split(), given.folder, (name, dtype), words, fault)
        cases[place, name, dtype] = case
        sys.stderr.write(f"{case}\n")
        with kept.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(case)) + "\n")
    page = render(list(cases.values()))
    if given.write:
        (given.write / "parts.md").write_text(page, encoding="utf-8")
    print(page)


def _read(line: str) -> Case:
    plain = json.loads(line)
    return Case(**{**plain, "blamed": tuple(plain["blamed"]), "inside": tuple(plain["inside"])})


def plan(parts: str, dtypes: Sequence[str]) -> Iterator[tuple[str, str, str, tuple[str, ...], Fault | None]]:
    """Yield the place, name and element type of each case, the words that plant it, and its fault."""
    wanted = parts.split(",") if parts else [_CLEAN, *(fault.part for fault in FAULTS)]
    for dtype in dtypes:
        for name in [name for name, dtypes in CLEAN.items() if dtype in dtypes and _CLEAN in wanted]:
            yield "", name, dtype, (f"+emulate={name}",), None
        for fault in FAULTS:
            if fault.part in wanted and dtype in fault.dtypes:
                rule = {**fault.rule, "module": fault.module or fault.place}
                yield fault.place, fault.name, dtype, ("emulate.name=planted", f"emulate.rules=[{_write(rule)}]"), fault


def _write(rule: dict[str, Any]) -> str:
    """Return a rule as Hydra reads it: it takes no quoted key."""
    return "{" + ",".join(f"{key}:{json.dumps(value)}" for key, value in rule.items()) + "}"


def run(program: Sequence[str], folder: Path, case: tuple[str, str], words: Sequence[str], fault: Fault | None) -> Case:
    """Run a case and say whether what came of it is right."""
    name, dtype = case
    command = [*program, *RECIPE, f"target.dtype={dtype}", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode not in {0, 1, 3}:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")
    ran = folder / "runs" / "sd_pipeline"
    result = json.loads((ran / "public" / "result.json").read_text(encoding="utf-8"))
    shutil.rmtree(ran / "public")  # a later case that writes none is not taken for this one
    for stale in [*ran.glob("store/*.target-*"), *ran.glob("store/compare-*"), *ran.glob("store/introduced*")]:
        shutil.rmtree(stale)  # each is of one case alone, and has many megabytes
    verdict = result["verdict"]["verdict"]
    blamed, inside = (
        tuple(part["name"] for part in result["parts"] if part["state"] == state) for state in (TO_BLAME, WRONG_INSIDE)
    )
    mend = next((mend["title"] for mend in result["mends"] if mend["smallest"]), "")
    if fault is None:
        right = verdict == "aligned" and not blamed and not inside
        return Case(name, "", dtype, verdict, blamed, inside, "", mend, right=right)
    starts = next((part["starts"] for part in result["parts"] if part["name"] == fault.part), "")
    shown = (blamed, inside) == ((fault.part,), ()) and bool(mend)
    hidden = dtype == "float16" and (blamed, inside) == ((), (fault.part,))
    right = (shown or hidden) and starts == f"{fault.place} / {fault.operator}"
    return Case(name, fault.place, dtype, verdict, blamed, inside, starts, mend, right=right)


def render(cases: list[Case]) -> str:
    """Return the page."""
    planted, clean = [case for case in cases if case.place], [case for case in cases if not case.place]
    lines = [
        "# Faults in every part of a pipeline",
        "",
        (
            "Made by `python -m benchmarks.parts`. Recipe `sd_pipeline` with one step of the UNet, the target on the emulated "
            "device, each case by its command. A fault is right if its part is to blame and no other, the first suspect is the "
            "operator that was planted, and what mends it is found. In float16 it may be too small to show in what its part "
            "returns: there the part is to be named as wrong inside, and nothing is mended."
        ),
        "",
        (
            f"Planted faults: {sum(case.right for case in planted)} of {len(planted)} right, of which "
            f"{sum(case.right and not case.blamed for case in planted)} are wrong inside. Sound chips that are aligned with no "
            f"part to blame: {sum(case.right for case in clean)} of {len(clean)}."
        ),
        "",
        (
            "Sizes of the faults were chosen by hand, to be found in float32. That a part can be wrong inside was learned from "
            "the first two of these cases in float16, whose parts were called fine before; the others came after. A target "
            "like `ascend_like`, whose convolutions take HF32 as those of an NPU do by default, is no sound chip in float32: "
            "all four parts with convolutions are to blame, and the run is misaligned."
        ),
        "",
        "| target | planted | in | to blame | starts at | mended by | right |",
        "|---|---|---|---|---|---|---|",
        *map(_render_row, planted),
        "",
        "| target | sound chip | verdict | to blame |",
        "|---|---|---|---|",
        *(f"| {case.dtype} | `{case.name}` | {case.verdict} | {', '.join(case.blamed) or 'none'} |" for case in clean),
    ]
    return "\n".join(lines) + "\n"


def _render_row(case: Case) -> str:
    starts = case.starts.removeprefix(f"{case.place.partition('.')[0]}.")
    named = [*case.blamed, *(f"{part} (wrong inside)" for part in case.inside)]
    cells = (case.dtype, case.name, f"`{case.place}`", ", ".join(named) or "none", f"`{starts}`", case.mend or "nothing")
    return f"| {' | '.join(cells)} | {'yes' if case.right else '**no**'} |"


if __name__ == "__main__":
    main()
