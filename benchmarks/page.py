"""How large the page of a run is, and how long a browser takes to open and to filter it, by the number of its records.

    python benchmarks/page.py             # 20 000, 200 000 and 1 000 000 records
    python benchmarks/page.py --quick     # 20 000 alone
    python benchmarks/page.py --write docs/benchmarks

The records are those of steps of training of a transformer of 48 layers, with a fault at seven tenths of them. Chromium opens
the page on a screen of 1440 by 900 without a graphics card. All times are seconds of the processor, which a busy machine does
not change much: of the page's own thread, which is what a reader waits for where nothing else is to do, and once of all threads
of the page, some of which unpack and paint.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from chromium import Browser

from precflow.agent.contract import Identity, identity_text
from precflow.comparison.measure import Measure
from precflow.diagnosis.findings import Region
from precflow.dumps.record_names import name_record
from precflow.judgement.verdicts import Judged, Verdict
from precflow.report import html
from precflow.report.model import ReportModel, Row, SideView

_SIZES = (20_000, 200_000, 1_000_000)
_LAYERS = 48
_FAULT = 0.7  # share of the records before the fault
_LIMIT = 2.0**-16
_WORDS = ("softmax", "layers.17", "nothing of that name")
_PARTS = (
    ("norm1", "layer_norm"),
    ("self_attn.q_proj", "linear"),
    ("self_attn.k_proj", "linear"),
    ("self_attn.v_proj", "linear"),
    ("self_attn", "matmul"),
    ("self_attn", "softmax"),
    ("self_attn.out_proj", "linear"),
    ("self_attn", ""),
    ("", "add"),
    ("norm2", "layer_norm"),
    ("mlp.fc1", "linear"),
    ("mlp.act", "gelu"),
    ("mlp.fc2", "linear"),
    ("mlp", ""),
    ("", ""),
)
_WEIGHTS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj", "mlp.fc1", "mlp.fc2")


def name_step(step: int) -> Iterator[Identity]:
    """Yield what a step of training records: forward, backward, gradients and the optimizer."""
    for layer in range(_LAYERS):
        for part, operator in _PARTS:
            yield Identity(f"encoder.layers.{layer}.{part}".rstrip("."), 0, operator, 0, "forward", "output", "0", step, 0)
    for phase, index in (("backward", "0"), ("gradient", "weight"), ("optimizer", "weight")):
        for layer in reversed(range(_LAYERS)):
            for part in _WEIGHTS:
                yield Identity(f"encoder.layers.{layer}.{part}", 0, "", 0, phase, "output", index, step, 0)


def make_rows(records: int) -> list[Row]:
    """Return so many records, whole steps only."""
    chance, rows = random.Random(11), list[Row]()
    step, fault = 0, int(_FAULT * records)
    while len(rows) < records:
        for identity in name_step(step):
            wrong = len(rows) >= fault
            error = 10 ** chance.uniform(-3.5, -1.5) if wrong else 10 ** chance.uniform(-7.5, -6)
            rows.append(_make_row(identity, len(rows), error, introduces=len(rows) == fault))
        step += 1
    return rows


def _make_row(identity: Identity, order: int, error: float, *, introduces: bool) -> Row:
    shape = (8, 512, 1024)
    metrics = {
        "cosine_similarity": 1 - error * error / 2,
        "relative_l2": error,
        "max_abs_error": error * (5 + order % 977 / 97),
        "ulp_distance": error * (1e7 + 1e4 * (order % 1013)),
        "mean_rel_error": error * (1 + order % 571 / 571),
        "rmse": error * (1 + order % 733 / 733),
        "worst_row_error": error * (2 + order % 211 / 211),
    }
    found = Measure(
        record=identity_text(identity),
        name=name_record(identity),
        module=identity.module,
        operator=identity.operator,
        level="api" if identity.operator else "module",
        phase=identity.phase,
        order=order,
        join="paired",
        reference_dtype="float32",
        target_dtype="float32",
        reference_shape=shape,
        target_shape=shape,
        metrics=metrics,
        counts={"elements": 4_194_304, "ordinary": 4_194_304, "small": order % 13},
        evidence="tensors",
        site=f"model.py:{order % 40} in forward <- train.py:12 in step",
        target_site=f"model.py:{order % 40} in forward <- train.py:12 in step",
        pairing="name",
    )
    fails = error > _LIMIT
    judged = Judged(found.record, "fail" if fails else "pass", "relative_l2", error, _LIMIT, error / _LIMIT, "default")
    return Row(found, judged, "introduces" if introduces else "inherits" if fails else "agrees")


def make_model(records: int) -> ReportModel:
    """Return the model of a report with so many records."""
    rows = make_rows(records)
    failed = sum(row.judged.status == "fail" for row in rows)
    counts = {"fail": failed, "pass": len(rows) - failed}
    start = next(row.measure.name for row in rows if row.role == "introduces")
    verdict = Verdict("misaligned", counts=counts, coverage=1.0, compared=len(rows), total=len(rows), could_fail=len(rows))
    sides = [
        SideView(name, f"{name}, torch 2.13.0, float32", emulated=False, device="cpu", dtype="float32")
        for name in ("reference", "target")
    ]
    return ReportModel(
        recipe="benchmark",
        title="A page with many records",
        run=1,
        finished="2026-11-27 12:00",
        precflow="0.1.0",
        command="precflow +recipe=benchmark",
        sides=(sides[0], sides[1]),
        verdict=verdict,
        region=Region(start),
        findings=(),
        rows=tuple(rows),
        differences={},
        stages=(),
        recipe_yaml="",
        columns=("cosine_similarity", "relative_l2", "max_abs_error", "ulp_distance"),
        seconds=1.0,
        emulated=False,
    )


_DRAWN = "await new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))"


def _worked(browser: Browser) -> float:
    """Return the seconds of the processor that the page's own thread has worked so far."""
    metrics = browser.call("Performance.getMetrics")["metrics"]
    return float(next(one["value"] for one in metrics if one["name"] == "ThreadTime"))


def _time(browser: Browser, action: str) -> float:
    """Return the work of the page's own thread until the page is drawn again after something was done to it."""
    before = _worked(browser)
    browser.run(f"(async () => {{ {action}; {_DRAWN} }})()")
    return _worked(browser) - before


def _find(word: str) -> str:
    """Return what types a word; the page waits a moment for the next letter."""
    put = f"const box = document.querySelector('#find'); box.value = {json.dumps(word)}"
    return f"{put}; box.dispatchEvent(new Event('input')); await new Promise((heard) => setTimeout(heard, 130))"


def measure_page(path: Path) -> dict[str, Any]:
    """Return what a browser has to do to open a page and to use it."""
    with tempfile.TemporaryDirectory() as profile:
        browser = Browser(Path(profile))
        try:
            browser.call("Performance.enable")
            before = browser.seconds_of_processor()
            browser.open(path.as_uri(), width=1440)
            browser.run(f"(async () => {{ {_DRAWN} }})()")
            opened, all_threads = _worked(browser), browser.seconds_of_processor() - before
            shown = browser.text("#chips button").partition("of")[0]
            return {
                "on_page": int("".join(filter(str.isdigit, shown))),
                "megabytes": path.stat().st_size / 1e6,
                "opened": opened,
                "all_threads": all_threads,
                "status": _time(browser, "document.querySelector('[data-status=fail]').click()"),
                "sorted": _time(browser, "document.querySelector('th[data-column=max_abs_error] button').click()"),
                "typed": max(_time(browser, _find(word)) for word in _WORDS),
            }
        finally:
            browser.close()


def measure(records: int) -> dict[str, Any]:
    """Return what the page of so many records takes."""
    model = make_model(records)
    began = time.process_time()
    text = html.render(model)
    written = time.process_time() - began
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "report.html")
        path.write_bytes(text.encode("utf-8", "backslashreplace"))
        return {"records": len(model.rows), "written": written, **measure_page(path)}


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as Markdown."""
    columns = (
        "records",
        "on the page",
        "page, MB",
        "written",
        "opened",
        "all threads",
        "a status chosen",
        "sorted",
        "a word found",
    )
    lines = [f"| {' | '.join(columns)} |", "|" + "--:|" * len(columns)]
    for row in rows:
        seconds = [row[name] for name in ("written", "opened", "all_threads", "status", "sorted", "typed")]
        figures = " | ".join(f"{value:.2f}" for value in (row["megabytes"], *seconds))
        lines.append(f"| {row['records']:,} | {row['on_page']:,} | {figures} |")
    return "\n".join(lines) + "\n"


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
        (options.write / "page.md").write_text(table(rows))
    print(json.dumps(rows) if options.json else table(rows), end="" if not options.json else "\n")


if __name__ == "__main__":
    main()
