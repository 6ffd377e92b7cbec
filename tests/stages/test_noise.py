"""Stage ``noise``: planned only where it is of use, keeps floors alone, and a machine without the reference goes on without."""

import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import dump_builder as builder
import numpy as np
import pytest

from precflow import keys
from precflow.agent.contract import NOISES
from precflow.config.composition import compose
from precflow.config.schema import Side
from precflow.run import steps
from precflow.run.jobs import make_job
from precflow.stages import judge, noise, registry
from precflow.stages.artifacts import write_lines
from precflow.stages.judge import read_judged, read_verdict

CALIBRATED = "tolerance.standards=[calibrated]"


def names(*words):
    config = compose(["+recipe=sd_text_encoder", CALIBRATED, *words], complete=False).config
    return [stage.name for stage in steps.select_stages(config)]


@pytest.mark.usefixtures("clean")
def test_it_is_planned_where_a_standard_asks_for_it_and_the_reference_runs():
    found = names()
    assert found.index("dump.reference") < found.index("noise.reference") < found.index("judge")
    assert names("sides=[reference]") == ["environment.reference", "dump.reference", "noise.reference"]
    assert "noise.reference" in names("sides=[target]")
    assert "noise.reference" not in names("tolerance.standards=[default]")
    assert "noise.reference" not in names("reference.dump=somewhere")
    assert "noise.reference" not in names("stages=[environment,dump,determinism,compare,judge]")


@pytest.mark.usefixtures("clean")
def test_a_standard_of_a_team_with_a_section_noise_is_measured_too(tmp_path):
    folder = tmp_path / "team" / "standard"
    folder.mkdir(parents=True)
    shipped = Path(__file__).parents[2] / "conf" / "standard" / "calibrated.yaml"
    (folder / "ours.yaml").write_text(shipped.read_text(encoding="utf-8"), encoding="utf-8")
    words = ["+recipe=sd_text_encoder", "tolerance.standards=[ours]"]
    job = make_job(compose(words, config_dirs=[tmp_path / "team"], complete=False), command="")
    assert noise.is_planned(job.config)
    assert not noise.is_planned(
        make_job(compose([*words[:1], "tolerance.standards=[default]"], complete=False), command="").config
    )


@pytest.mark.usefixtures("clean")
def test_only_what_judges_waits_for_it_in_both_passes():
    config = compose(["+recipe=sd_text_encoder", CALIBRATED, "capture=escalating"], complete=False).config
    needing = [stage.name for stage in registry.instances(config) if noise.NAME in stage.needs]
    assert needing == ["judge", "localize", "judge@2", "localize@2"]


@pytest.mark.usefixtures("clean")
def test_its_value_depends_on_what_the_reference_runs_and_on_the_target_s_type_but_on_no_limit():
    def declared(*words):
        return noise.STAGE.declare(
            "reference", make_job(compose(["+recipe=sd_text_encoder", CALIBRATED, *words], complete=False), command="")
        )

    plain = declared()
    assert plain["dtype"] == "float16"
    assert (plain["determinism"]["repeat"], plain["capture"]["weights"]) == (False, "left_out")
    assert declared("tolerance.relative_l2=1%", "target.device=cpu", "coverage.minimum=0.5") == plain
    for change in ("target.dtype=float32", "determinism.seed=5", "capture.level=[module]"):
        assert declared(change) != plain


@pytest.fixture
def measured(pair, job_of, tmp_path, monkeypatch):
    """Return a function that makes the stage's folder, with an agent that writes dumps whose second operator is off."""
    pair()
    hidden = np.random.default_rng(5).standard_normal((4, 16)).astype(np.float32)  # that of the pair

    def make(off=1e-6, problem=""):
        def answer(job, side, request, folder):
            assert (side, request["action"]) == ("reference", "noise")
            for name in () if problem else NOISES:
                dump = builder.DumpBuilder(folder / name)
                dump.call("fc1", "linear", [hidden], [hidden])
                dump.call("fc2", "linear", [(hidden + 1) * np.float32(1 + off * (name == "chunks"))], [hidden])
                dump.write()
            (folder / "noise.json").write_text(json.dumps({"problem": problem, "noises": list(NOISES), "seconds": {}}))

        monkeypatch.setattr(noise, "ask_agent", answer)
        folder = tmp_path / "noise"
        folder.mkdir()
        result = noise.STAGE.make(
            "reference", job_of(tmp_path / "dumps"), folder, {"dump.reference": tmp_path / "dumps" / "reference"}
        )
        return folder, result

    return make


def test_it_keeps_the_largest_difference_of_each_record_and_no_dump(measured):
    folder, result = measured()
    floors = noise.read_floors({noise.NAME: folder})
    assert floors["fc1/linear.0/forward.output.0"].metrics["relative_l2"] == 0
    assert floors["fc2/linear.0/forward.output.0"].metrics["relative_l2"] == pytest.approx(1e-6, rel=0.1)
    assert floors["fc2/linear.0/forward.output.0"].noises["relative_l2"] == "chunks"
    assert sorted(path.name for path in folder.iterdir()) == ["floors.jsonl", "noise.json"]
    assert "floors of 2 records" in result.note
    assert noise.explain_missing(folder) == ""


def write_disturbed(folder):
    dump = builder.DumpBuilder(folder)
    dump.call("fc1", "linear", [np.ones((4, 16), np.float32)])
    dump.write()


def test_a_disturbed_run_is_compared_while_the_agent_makes_the_next(pair, job_of, tmp_path, monkeypatch):
    pair()
    left = []

    def answer(job, side, request, folder):
        for name in NOISES:
            (folder / name).mkdir()
            left.append(sorted(path.name for path in folder.iterdir()))
            write_disturbed(folder / name)
            patience = 1 if name == NOISES[0] else 100  # the first is complete only when the second begins
            while len(list(folder.iterdir())) > 1 and patience:
                time.sleep(0.1)
                patience -= 1
        (folder / "noise.json").write_text(json.dumps({"problem": "", "noises": list(NOISES), "seconds": {}}))

    monkeypatch.setattr(noise, "ask_agent", answer)
    folder = tmp_path / "noise"
    folder.mkdir()
    noise.STAGE.make("reference", job_of(tmp_path / "dumps"), folder, {"dump.reference": tmp_path / "dumps" / "reference"})
    first, second, third = NOISES
    assert left == [[first], sorted([first, second]), sorted([second, third])]
    assert noise.read_floors({noise.NAME: folder})


def test_whoever_stops_the_agent_does_not_wait_for_a_comparison(pair, job_of, tmp_path, monkeypatch):
    pair()
    begun = threading.Event()

    def compare(*_, advance, **__):
        begun.set()
        for _ in range(200):
            advance(0, 1)
            time.sleep(0.1)

    def answer(job, side, request, folder):
        write_disturbed(folder / NOISES[0])
        (folder / NOISES[1]).mkdir()
        assert begun.wait(10)
        raise KeyboardInterrupt

    monkeypatch.setattr(noise, "compare", compare)
    monkeypatch.setattr(noise, "ask_agent", answer)
    folder = tmp_path / "noise"
    folder.mkdir()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        noise.STAGE.make("reference", job_of(tmp_path / "dumps"), folder, {"dump.reference": tmp_path / "dumps" / "reference"})
    assert time.monotonic() - started < 10


def test_where_the_disturbed_runs_fail_there_are_no_floors_and_the_reason_is_kept(measured):
    folder, result = measured(problem="no such operator for Half")
    assert noise.read_floors({noise.NAME: folder}) == {}
    assert noise.explain_missing(folder) == "the disturbed runs of the reference failed (no such operator for Half)"
    assert result.note == "not measured: no such operator for Half"


@pytest.mark.parametrize(("off", "status"), [(1e-3, "pass"), (1e-6, "fail")])
def test_the_judge_takes_the_floors(measured, made, pair, tmp_path, off, status, job_of):
    floors, _ = measured(off)
    folder = pair("other", factor=1.001)
    folders = made(folder, CALIBRATED, until="compare")
    out = tmp_path / "judged"
    out.mkdir()
    judge.STAGE.make(job_of(folder, CALIBRATED), out, {**folders, noise.NAME: floors})
    row = read_judged(out)[1]
    assert (row.status, row.standard) == (status, "calibrated")
    assert row.floor is not None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, "two given dumps have none, a run of the recipe measures it"),
        ({"target": Side()}, "the reference is a given dump"),
        ({"reference": Side(), "stages": ("judge",)}, "stages leaves noise out"),
        ({"reference": Side()}, "the store has none of this reference"),
    ],
)
def test_without_floors_the_verdict_says_why(made, pair, tmp_path, job_of, change, why):
    folder = pair("other", factor=1 + 1e-6)
    folders = made(folder, CALIBRATED, until="compare")
    out = tmp_path / "judged"
    out.mkdir()
    job = job_of(folder, CALIBRATED)
    judge.STAGE.make(replace(job, config=replace(job.config, **change)), out, folders)
    assert read_verdict(out).warnings == (f"no noise floor: {why}; the fixed limits of calibrated apply",)


@pytest.mark.usefixtures("clean")
def test_the_machine_of_the_target_finds_the_floors_in_the_store_and_goes_on_without_them(tmp_path):
    words = ["+recipe=sd_text_encoder", CALIBRATED, "sides=[target]", f"store={tmp_path}"]
    job = make_job(compose(words), command="")
    where = steps.locate_run(job.config)
    assert steps.resolve(noise.STAGE.instance("reference"), job, where, {}).state == "missing"
    agenda = steps.Agenda(job, where)
    assert agenda.forgo(noise.STAGE.instance("reference"))
    left = list(agenda)
    assert noise.NAME not in [stage.name for stage in left]
    assert not any(noise.NAME in stage.needs for stage in left)

    declared = {"version": noise.STAGE.version, **noise.STAGE.declare("reference", job)}
    key = keys.digest([noise.NAME, declared])[: steps._DECLARED_DIGITS] + "-aa"
    with where.store.making(noise.NAME, key) as attempt:
        write_lines(attempt.folder / noise.FLOORS_FILE, [])
        where.store.seal(attempt, {"name": noise.NAME, "key": key, "declared": declared, "needs": {}, "note": ""})
    assert steps.resolve(noise.STAGE.instance("reference"), job, where, {}).state == "kept"


def scripted(tmp_path, *words):
    (tmp_path / "train.py").write_text("pass")
    words = ["+recipe=script", f"workload.script={tmp_path / 'train.py'}", CALIBRATED, *words]
    return make_job(compose(words, complete=False), command="")


def write_reference(folder, dtype, optimizer="SGD"):
    dump = builder.DumpBuilder(folder)
    dump.call("fc", "linear", [np.ones((4, 16), dtype)])
    dump.call("fc", "add", [np.ones((4, 16), np.float32)])
    dump.call("fc", "", {"bias": np.ones(16, np.float32)}, phase="optimizer", arguments={"optimizer": f"'{optimizer}'"})
    dump.write()
    return {"dump.reference": folder}


@pytest.mark.usefixtures("clean")
def test_a_script_in_float32_with_sgd_is_not_run_again(tmp_path, monkeypatch):
    monkeypatch.setattr(noise, "ask_agent", None)
    folder = tmp_path / "noise"
    folder.mkdir()
    result = noise.STAGE.make("reference", scripted(tmp_path), folder, write_reference(tmp_path / "reference", np.float32))
    assert result.note == "not measured: the script computes in float32 with no optimizer but SGD, where it is not measured"
    assert noise.read_floors({noise.NAME: folder}) == {}
    assert noise.explain_missing(folder) == "the script computes in float32 with no optimizer but SGD, where it is not measured"


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize(
    ("dtype", "optimizer", "problem"),
    [(np.float16, "SGD", ""), (np.float16, "SGD", "it does not run so"), (np.float32, "AdamW", "")],
)
def test_any_other_script_runs_once_for_each_disturbance_and_its_logs_are_put_back(
    tmp_path, monkeypatch, dtype, optimizer, problem
):
    asked = []

    def answer(job, side, request, folder):
        asked.append((side, request["action"], request["noise"], request["workload"]["stop_early"]))
        Path("loss.jsonl").write_text("disturbed")
        write_reference(folder, dtype, optimizer)
        (folder / "noise.json").write_text(json.dumps({"problem": problem, "noises": [request["noise"]], "seconds": {}}))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(noise, "ask_agent", answer)
    Path("loss.jsonl").write_text("recorded")
    folder = tmp_path / "noise"
    folder.mkdir()
    job = scripted(tmp_path, "workload.files=[loss.jsonl]")
    result = noise.STAGE.make("reference", job, folder, write_reference(tmp_path / "reference", dtype, optimizer))
    assert asked == [("reference", "noise", name, True) for name in NOISES[: 1 if problem else None]]
    assert Path("loss.jsonl").read_text() == "recorded"
    assert sorted(path.name for path in folder.iterdir()) == ["floors.jsonl", "noise.json"]
    assert result.note == (f"not measured: {problem}" if problem else "floors of 3 records, half of them below 0 (relative_l2)")
