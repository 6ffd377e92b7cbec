"""One model, four files, and no home folder in any of them."""

import shlex
from pathlib import Path

import dump_builder as builder
import numpy as np

from precflow.diagnosis.findings import Finding
from precflow.stages import report
from precflow.stages.report import read_model


def test_the_model_carries_every_record(pair, made):
    model = read_model(made(pair(factor=1.01))["report"])
    assert model.verdict.verdict == "misaligned"
    assert [row.measure.name for row in model.rows] == ["fc1 / linear", "fc2 / linear"]
    assert [view.side for view in model.sides] == ["reference", "target"]


def test_four_files_are_public(pair, made):
    public = made(pair())["report"] / "public"
    assert sorted(path.name for path in public.iterdir()) == ["junit.xml", "report.html", "report.md", "result.json"]


def test_homes_stay_private(pair, made, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = made(pair())["report"]
    assert str(Path.home()) == str(tmp_path)
    assert all(str(tmp_path) not in path.read_text(encoding="utf-8") for path in (folder / "public").iterdir())


def test_a_side_without_a_header_is_unknown_and_not_empty(pair, made):
    _, target = read_model(made(pair(sealed=False))["report"]).sides
    assert (target.device, target.dtype) == ("unknown device", "")
    assert target.title == "unknown: its dump has no header"


def test_records_that_share_an_identity_keep_their_own_status(pair, made):
    folder = pair()
    for side, factor in (("reference", 1.0), ("target", 1.5)):
        dump = builder.DumpBuilder(folder / side, side=side)
        dump.call("fc1", "linear", [np.full((2, 3), factor, np.float32)], [np.ones((2, 3), np.float32)])
        dump.call("fc1", "linear", [np.ones((2, 3), np.float32)], [np.ones((2, 3), np.float32)], ordinal=0)
        dump.write()
    model = read_model(made(folder)["report"])
    assert [row.judged.status for row in model.rows] == ["fail", "pass"]
    assert model.region.start == "fc1 / linear"


def test_what_to_try_is_this_run_s_own_command_with_the_change(pair, made, monkeypatch, tmp_path):
    found = [Finding("PF901", "rounding", "likely", try_it="target.dtype=float32"), Finding("PF902", "other", "possible")]
    monkeypatch.setattr(report, "read_findings", lambda _: found)
    monkeypatch.setenv("HOME", str(tmp_path))
    model = read_model(made(pair(), "target.dtype=float16", "tolerance.relative_l2=1%")["report"])
    given = [f"{side}.dump=~/dumps/{side}" for side in ("reference", "target")]
    command = ["precflow", "+recipe=compare_dumps", *given, "tolerance.relative_l2=1%", "target.dtype=float32"]
    assert [shlex.split(finding.try_it) for finding in model.findings] == [command, []]
    assert [finding.change for finding in model.findings] == ["target.dtype=float32   instead of   target.dtype=float16", ""]


DEEP = 1200  # Python gives up at a thousand


def test_modules_that_nest_deeper_than_python_recurses_are_reported(tmp_path, made):
    """One module in forty has records; the tree of the page has all of them."""
    depths = range(DEEP, 0, -40)
    tensor = np.ones((2, 2), np.float32)
    for side, factor in (("reference", 1.0), ("target", 1.01)):
        dump = builder.DumpBuilder(tmp_path / side, side=side)
        for depth in depths:
            dump.call(".".join("m" * depth), "", [tensor * np.float32(depth * factor)], [tensor])
        dump.write()
    folder = made(tmp_path)["report"]
    model = read_model(folder)
    assert len(model.rows) + model.rows_left_out == len(depths)
    assert model.region.start == ".".join("m" * DEEP)
    assert sum(path.stat().st_size for path in (folder / "public").iterdir()) < 10e6


def test_the_script_that_runs_a_suspect_alone_is_kept_but_not_published(pair, made):
    folder = made(pair(factor=1.01))["report"]
    assert {path.name for path in (folder / "repro").iterdir()} == {"repro.py", "repro.safetensors"}
    assert not list((folder / "public").glob("repro*"))
