"""What a comparison of two dumps of msprobe costs: ``precflow compare`` against ``msprobe compare``, from start to table.

    python benchmarks/foreign.py                    a tensor dump of about 1 GB a side, and 200 000 entries of statistics
    python benchmarks/foreign.py --gigabytes 2      a larger tensor dump
    python benchmarks/foreign.py --width 2048       fewer and larger tensors: 5.7 MB on average, of 0.9 MB with 512
    python benchmarks/foreign.py --json             one object on stdout

Both dumps are made here by msprobe (``pip install mindstudio-probe``): one training step of a text encoder, level mix, the
target with one projection in bfloat16. Entries of statistics are those of such a dump again and again, with other numbers
of calls. Both tools read the same folders one after the other, so that ratios hold on any machine: seconds of the clock,
seconds of the processor, and the peak of the largest process in megabytes. ``OMP_NUM_THREADS=1`` keeps threads that wait for
each other out of the seconds of the processor.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_ENTRIES = 200_000
_RECORD = """
import json, sys
import torch
from msprobe.pytorch import PrecisionDebugger
from transformers import CLIPTextConfig, CLIPTextModel
folder, task, layers, width, fault = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5] == "fault"
json.dump({"task": task, "level": "mix", "dump_path": folder, "rank": [], "step": []}, open(f"{folder}/config.json", "w"))
torch.manual_seed(0)
config = CLIPTextConfig(
    hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers, num_attention_heads=8, vocab_size=8000,
    bos_token_id=1, eos_token_id=2, attn_implementation="eager",
)
model = CLIPTextModel(config)
if fault:
    fc1 = [module for name, module in model.named_modules() if name.endswith("mlp.fc1")][layers // 2]
    whole = fc1.forward
    fc1.forward = lambda given: whole(given.bfloat16().float())
debugger = PrecisionDebugger(config_path=f"{folder}/config.json")
debugger.start(model)
model(torch.randint(0, 8000, (4, 77))).last_hidden_state.square().mean().backward()
debugger.stop()
debugger.step()
"""
_MSPROBE = "import sys; from msprobe.msprobe import main; sys.exit(main())"
_MEASURE = """
import json, resource, subprocess, sys, time
began = time.perf_counter()
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps({"seconds": time.perf_counter() - began, "processor": used.ru_utime + used.ru_stime,
                  "megabytes": used.ru_maxrss / 1000, "exit": done.returncode, "error": done.stderr.decode()[-500:]}))
"""


def main() -> None:
    """Make the dumps, run both tools on them and print what they took."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--gigabytes", type=float, default=1.0, help="of a side, roughly")
    options.add_argument("--width", type=int, default=512, help="of the model: the larger, the fewer tensors")
    options.add_argument("--entries", type=int, default=_ENTRIES, help="0: no statistics")
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="precflow-foreign-") as scratch:
        found = {"tensors": compare_tensors(Path(scratch), chosen.gigabytes, chosen.width)}
        if chosen.entries:
            found["statistics"] = compare_statistics(Path(scratch), chosen.entries)
    if chosen.json:
        print(json.dumps(found, indent=1))
        return
    for what, one in found.items():
        print(f"{what}: {one['size']}")
        for tool in ("precflow", "msprobe"):
            seen = one[tool]
            took = f"{seen['seconds']:8.2f} s   {seen['processor']:8.2f} s of the processor"
            print(f"   {tool:<9}{took}   {seen['megabytes']:7.0f} MB")
        times = [one["msprobe"][what] / one["precflow"][what] for what in ("seconds", "processor")]
        print(f"   msprobe takes {times[0]:.1f} times as long, and {times[1]:.1f} times the processor")


def compare_tensors(scratch: Path, gigabytes: float, width: int) -> dict[str, Any]:
    """Compare two dumps of tensors."""
    layers = max(1, round(gigabytes / _size_of_layer(width)))
    sides = [record(scratch / f"tensor_{side}", "tensor", layers, width, side) for side in ("reference", "fault")]
    size = sum(file.stat().st_size for file in sides[0].rglob("*") if file.is_file())
    return {"size": f"{size / 1e9:.2f} GB a side", **compare(scratch, *sides)}


def _size_of_layer(width: int) -> float:
    """Return roughly how many gigabytes a layer adds: tensors of tokens grow with the width, gradients with its square."""
    return 0.18 * (width / 512) + 0.02 * (width / 512) ** 2


def compare_statistics(scratch: Path, entries: int) -> dict[str, Any]:
    """Compare two dumps of statistics with many entries."""
    sides = [record(scratch / f"statistics_{side}", "statistics", 2, 64, side) for side in ("reference", "fault")]
    for side in sides:
        path = next(side.glob("step0/*/dump.json"))
        plain = json.loads(path.read_text())
        plain["data"] = repeat(plain["data"], entries)
        path.write_text(json.dumps(plain, indent=1))
        (path.parent / "construct.json").write_text("{}")
        (path.parent / "stack.json").write_text("{}")
    return {"size": f"{entries} entries a side", **compare(scratch, *sides)}


def repeat(data: dict[str, Any], entries: int) -> dict[str, Any]:
    """Return the entries of operators again and again, each time with further numbers of calls."""
    operators = {name: values for name, values in data.items() if not name.startswith("Module.")}
    made: dict[str, Any] = {}
    turn = 0
    while len(made) < entries:
        for name, values in operators.items():
            head, number, phase = name.rsplit(".", 2)
            made[f"{head}.{int(number) + 1000 * turn}.{phase}"] = values
            if len(made) >= entries:
                break
        turn += 1
    return made


def record(folder: Path, task: str, layers: int, width: int, side: str) -> Path:
    """Record one side with msprobe."""
    folder.mkdir()
    arguments = [str(folder), task, str(layers), str(width), side]
    subprocess.run([sys.executable, "-c", _RECORD, *arguments], check=True, capture_output=True)
    return folder


def compare(scratch: Path, reference: Path, target: Path) -> dict[str, Any]:
    """Run both tools, ours first."""
    files = [str(next(side.glob("step0/*/dump.json"))) for side in (reference, target)]
    commands = {
        "precflow": [
            "-m",
            "precflow",
            "compare",
            str(reference),
            str(target),
            "--no-evaluation",
            "--output",
            str(scratch / "ours"),
        ],
        "msprobe": [
            "-c",
            _MSPROBE,
            "compare",
            "-gp",
            files[0],
            "-tp",
            files[1],
            "-o",
            str(scratch / f"theirs{time.time_ns()}"),
        ],
    }
    found = {}
    # Once before: a kernel is compiled once an installation, and the files are in memory for both.
    subprocess.run([sys.executable, *commands["precflow"]], check=False, capture_output=True)
    for tool, arguments in commands.items():
        done = subprocess.run(
            [sys.executable, "-c", _MEASURE, sys.executable, *arguments],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""},
        )
        found[tool] = json.loads(done.stdout)
        if found[tool]["exit"] not in ({0, 1, 3} if tool == "precflow" else {0}):
            sys.exit(f"{tool} ended with {found[tool]['exit']}: {found[tool]['error']}")
    return found


if __name__ == "__main__":
    main()
