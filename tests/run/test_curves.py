"""Runs that compare curves: logs alone, logs beside dumps, and what the run of a side has left in its dump."""

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from precflow.agent.contract import FILES_FOLDER, OUTPUT_FILE
from precflow.config.composition import compose
from precflow.dumps.header import Header
from precflow.errors import ConfigError, CurveError
from precflow.run.find_runs import find_run
from precflow.run.runner import run
from precflow.run.two_runs import compare_runs
from precflow.stages import dump as dump_stage
from precflow.stages import registry
from precflow.stages.curves import read_outcomes
from precflow.stages.report import read_model

STEPS = np.arange(1, 201)
LOSS = 2 + 8 * np.exp(-STEPS / 40) + 0.05 * np.random.default_rng(0).normal(size=200)


def write_log(name, losses, *, norm=None):
    """Write lines as Megatron does."""
    more = "" if norm is None else f" grad norm: {norm:.3f} |"
    lines = [
        f" iteration {step:8d}/     200 | lm loss: {loss:.6E} | loss scale: 1.0 |{more}\n"
        for step, loss in enumerate(losses, start=1)
    ]
    Path(name).write_text("".join(lines))
    return name


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch):
    """Work in an empty folder with the reference's log in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CI", raising=False)
    (tmp_path / "gpu.json").write_text(json.dumps({"step": STEPS.tolist(), "loss": LOSS.tolist()}))


def compare(losses, *words, log=write_log):
    target = log("npu.log", losses)
    words = words if any(word.startswith("reference.log") for word in words) else ("reference.log=gpu.json", *words)
    outcome = run(compose(["+recipe=loss_curves", f"target.log={target}", *words]), command="precflow")
    return outcome, json.loads(Path("runs/loss_curves/public/result.json").read_text())


@pytest.mark.parametrize(
    ("losses", "verdict", "code", "rule"),
    [
        (LOSS, "aligned", 0, None),
        (LOSS + 1e-4 * np.cos(STEPS), "aligned", 0, None),
        (LOSS + 0.08181 + 0.02 * np.cos(STEPS), "misaligned", 1, "PF701"),
        (LOSS * 2.0005, "misaligned", 1, "PF709"),
        (LOSS + 0.08181, "misaligned", 1, "PF710"),
        (LOSS * (1 + 0.03 * np.cos(17 * STEPS)), "misaligned", 1, "PF712"),
        (LOSS + np.where(STEPS > 80, 0.005 * (STEPS - 80), 0), "misaligned", 1, "PF702"),
        (np.where(STEPS > 150, math.nan, LOSS), "misaligned", 1, "PF703"),
        (LOSS[:150], "inconclusive", 3, None),
        (LOSS[1:], "misaligned", 1, "PF707"),
    ],
    ids=[
        "equal",
        "noise",
        "from the first step",
        "twice",
        "more",
        "fluctuates",
        "later",
        "nan",
        "stops",
        "counted from another number",
    ],
)
def test_two_logs(losses, verdict, code, rule, capsys):
    outcome, result = compare(losses)
    assert (outcome.verdict, outcome.exit_code) == (verdict, code)
    assert result["verdict"]["verdict"] == result["curves"][0]["verdict"] == verdict
    assert [finding["rule"] for finding in result["findings"]][:1] == ([rule] if rule else [])
    said = capsys.readouterr().err
    assert "gpu.json -> npu.log" in said
    assert "of 0 compared" not in said
    assert {"curves", "advise", "report"} == {stage["name"] for stage in result["stages"]} | {"report"}


def test_a_jump_where_a_run_was_resumed(capsys):
    behind = np.where(STEPS > 60, LOSS + 0.6 * np.exp(-(STEPS - 61) / 20), LOSS)
    lost = [
        {"step": step, "loss": LOSS[step - 1]} for step in range(61, 67)
    ]  # the run went on to step 66 before it was resumed
    rows = [{"step": int(step), "loss": loss} for step, loss in zip(STEPS, behind, strict=True)]
    rows[60:60] = lost
    Path("npu.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run(compose(["+recipe=loss_curves", "reference.log=gpu.json", "target.log=npu.jsonl"]), command="precflow")
    result = json.loads(Path("runs/loss_curves/public/result.json").read_text())
    assert [finding["rule"] for finding in result["findings"]] == ["PF711"]
    assert "jumps where its run was resumed: from step 61 on" in result["findings"][0]["title"]
    assert "apart from step 61 to" in capsys.readouterr().err
    assert result["curves"][0]["growth"]["kind"] == "shrinks"


def test_a_limit_that_is_added_does_not_unmeet_the_others():
    _, result = compare(LOSS + 1e-3 * np.cos(STEPS), "curves.loss.max_abs_error=1e-4")
    assert result["verdict"]["standards"] == {"loss: loss_1_percent (2026-11-22)": True, "loss: max_abs_error <= 0.0001": False}


def test_sides_that_log_differently():
    """A chart of two runs, and verl's lines: each side says which numbers it means."""
    chart = "".join(f'"{step}","{loss}","{loss + 1}"\n' for step, loss in zip(STEPS, LOSS, strict=True))
    Path("chart.csv").write_text('"Step","gpu - train/loss","npu - train/loss"\n' + chart)
    lines = "".join(f"step:{step} - actor/pg_loss:{loss} - lr:1e-6\n" for step, loss in zip(STEPS, LOSS, strict=True))
    Path("npu.log").write_text(lines)
    words = ["+recipe=loss_curves", "reference.log=chart.csv", "target.log=npu.log"]
    of_reference, of_target = "curves.loss.reference.column='gpu - train/loss'", "curves.loss.target.column=actor/pg_loss"
    with pytest.raises(CurveError, match="of 2 runs: gpu - train/loss, npu - train/loss") as caught:
        run(compose(words), command="precflow")
    assert of_reference in caught.value.next_step
    with pytest.raises(CurveError, match="These may be meant: actor/pg_loss") as caught:
        run(compose([*words, of_reference]), command="precflow")
    assert of_target in caught.value.next_step
    outcome = run(compose([*words, of_reference, of_target]), command="precflow")
    assert outcome.verdict == "aligned"
    with pytest.raises(ConfigError, match=r"curves\.loss\.target\.pattern .* has no group step"):
        compose([*words, "curves.loss.target.pattern='loss (?P<value>.*)'"])


def test_two_runs_side_by_side():
    compare(LOSS + 0.08181)
    compare(LOSS)
    found = compare_runs(find_run("runs/loss_curves@1"), find_run("runs/loss_curves@2"))
    assert [verdict.verdict for verdict in found.verdicts] == ["misaligned", "aligned"]
    assert found.losses == (pytest.approx(0.08181, rel=1e-3), pytest.approx(0, abs=1e-5))
    assert found.notes == ("target: its log is another one, or has changed",)
    assert (found.better, found.worse, found.same) == ((), (), 0)


def test_the_last_line_of_a_build(monkeypatch, capsys):
    monkeypatch.setenv("CI", "true")
    compare(LOSS + 0.08181)
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert "verdict=misaligned" in last
    assert " curve=loss:0.0818@" in last
    assert "coverage" not in last


def test_what_the_screen_and_the_files_say(capsys):
    compare(LOSS + 0.08181)
    said = " ".join(capsys.readouterr().err.split())
    assert "loss max |difference| 8.18e-2 at step" in said
    assert "0.08181 above at every step" in said
    page = Path("runs/loss_curves/report.html").read_text()
    assert page.count('<polyline class="of-') == 3
    assert 'id="network"' not in page
    assert "| loss | max \\|difference\\| 8.18e-2 at step" in Path("runs/loss_curves/public/report.md").read_text()
    junit = Path("runs/loss_curves/public/junit.xml").read_text()
    assert '<testcase classname="loss_curves.curves" name="loss"' in junit
    assert str(Path.cwd()) not in page  # only names of files, no paths


def test_no_torch_is_imported():
    import subprocess

    code = "import sys; from precflow.cli import main; main(sys.argv[1:]); assert 'torch' not in sys.modules"
    write_log("npu.log", LOSS)
    words = ["+recipe=loss_curves", "reference.log=gpu.json", "target.log=npu.log"]
    ended = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert "AssertionError" not in ended.stderr
    assert "ALIGNED" in ended.stderr.upper()


def test_a_changed_log_is_read_again_and_an_equal_one_is_not():
    compare(LOSS)
    _, result = compare(LOSS)
    assert {stage["state"] for stage in result["stages"]} == {"run"}  # of the report that was kept
    outcome, _ = compare(LOSS + 1)
    assert outcome.verdict == "misaligned"


def test_several_curves_and_limits_of_ones_own():
    words = ("reference.log=gpu.log", "curves.grad_norm.mean_rel_error=10%", "curves.loss.max_abs_error=0.1")
    write_log("gpu.log", LOSS, norm=5)
    outcome, result = compare(LOSS, *words, log=lambda name, losses: write_log(name, losses, norm=5.4))
    assert outcome.verdict == "aligned"
    outcome, result = compare(LOSS, *words, log=lambda name, losses: write_log(name, losses, norm=5.6))
    assert outcome.verdict == "misaligned"
    assert [curve["verdict"] for curve in result["curves"]] == ["aligned", "misaligned"]
    assert result["verdict"]["standards"]["grad_norm: mean_rel_error <= 0.1"] is False


def test_repeats_of_the_reference():
    sign = np.where(STEPS % 2, 1, -1)
    Path("again.json").write_text(json.dumps({"loss": (LOSS + 0.3 * sign).tolist(), "step": STEPS.tolist()}))
    _, result = compare(
        LOSS - 0.2 * sign,
        "reference.log=[gpu.json,again.json]",
        "curves.loss.standard=mindformers_migration",
    )
    assert result["curves"][0]["repeats"] == 1
    assert result["curves"][0]["fluctuation"] == pytest.approx(0.3)
    assert result["verdict"]["verdict"] == "inconclusive"  # 200 steps are too few for that standard


def test_a_log_without_the_curve_cannot_be_judged():
    with pytest.raises(CurveError, match=r"the target's npu\.log: no line has loss"):
        compare([], log=lambda name, _: Path(name).write_text("nothing\n") and name)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["curves.loss.standard=calibrated"], "is not one of loss_1_percent"),
        (["curves.loss.standard=''"], "has nothing that could fail"),
        (["curves.loss.max_abs_error=-1"], "expected a number of at least 0"),
        (["curves.loss.steps=-1"], "expected a number of steps"),
        (["curves.loss.pattern=loss"], "has no group step and no group value"),
        (["curves.loss.file=../secret"], "without `..`"),
        (["curves.loss.stepz=1"], "Did you mean  curves.loss.steps ?"),
        (["target.log=[npu.log,npu.log]"], "has several logs"),
        (["reference.log=nothing.log"], "nothing.log"),
        (["~curves"], "`curves` is empty"),
    ],
)
def test_what_is_said_about_a_wrong_section(words, said):
    write_log("npu.log", LOSS)
    given = ["reference.log=gpu.json", "target.log=npu.log"]
    kept = [word for word in given if word.partition("=")[0] not in {other.partition("=")[0] for other in words}]
    with pytest.raises(ConfigError) as caught:
        compose(["+recipe=loss_curves", *kept, *words])
    assert said in str(caught.value)


def test_a_side_needs_a_log_or_something_to_run():
    with pytest.raises(ConfigError, match=r"asks for it: target.log=npu.json"):
        compose(["+recipe=loss_curves", "reference.log=gpu.json"])


def test_a_recipe_may_not_name_a_log():
    Path("mine.yaml").write_text("# @package _global_\n# x\ncurves: {loss: {standard: verl_npu}}\nreference: {log: gpu.json}\n")
    with pytest.raises(ConfigError, match="belongs to a machine"):
        compose(["+recipe=mine.yaml", "target.log=gpu.json"])


def test_logs_beside_dumps_are_part_of_their_verdict(composed):
    words = ["curves.loss.max_rel_error=1%", "reference.log=gpu.json", f"target.log={write_log('npu.log', LOSS + 1)}"]
    config = composed(*words)
    assert run(composed(), command="precflow").verdict == "aligned"
    outcome = run(config, command="precflow")
    assert outcome.verdict == "misaligned"
    model = read_model(outcome.report)
    assert model.verdict.reasons[0].startswith("the largest relative difference of the loss is")
    assert "PF710" in [finding.rule for finding in model.findings]
    assert [stage.name for stage in registry.instances(config.config)].count("curves") == 1


def test_what_a_run_has_left_in_its_dump(composed, tmp_path):
    config = composed("curves.loss.standard=verl_npu", "curves.loss.pattern=megatron")
    outcome = run(config, command="precflow")
    assert outcome.verdict == "inconclusive"  # it printed nothing
    assert "~curves.loss does without" in read_model(outcome.report).verdict.reasons[0]
    for side in ("reference", "target"):
        write_log(tmp_path / "dumps" / side / OUTPUT_FILE, LOSS)
    assert run(config, command="precflow").verdict == "aligned"
    config = composed("curves.loss.standard=verl_npu", "curves.loss.file=gpulog.json")
    outcome = run(config, command="precflow")
    assert "has left no file gpulog.json for the curve loss; kept are: none" in read_model(outcome.report).verdict.reasons[0]
    for side, factor in (("reference", 1.0), ("target", 1.1)):
        folder = tmp_path / "dumps" / side / FILES_FOLDER
        folder.mkdir()
        (folder / "gpulog.json").write_text(json.dumps((LOSS * factor).tolist()))
    assert run(config, command="precflow").verdict == "misaligned"


def test_the_losses_that_capture_saw(composed, monkeypatch, tmp_path):
    losses = {"reference": (2.0, 1.0), "target": (2.0, 1.1)}

    def open_dump(folder):
        path = dump_stage.open_dump(folder).path
        return SimpleNamespace(path=path, header=Header(losses=losses[path.name]))

    monkeypatch.setattr("precflow.stages.curves.open_dump", open_dump)
    outcome = run(composed("curves.loss.standard=verl_npu"), command="precflow")
    assert outcome.verdict == "misaligned"
    curve = read_model(outcome.report).curves[0]
    assert curve.sources["target"] == "the losses in the target's dump"
    assert curve.found.max_abs_error == pytest.approx(0.1)
    for side in ("reference", "target"):  # a script printed more of them than capture recorded
        write_log(tmp_path / "dumps" / side / OUTPUT_FILE, LOSS)
    outcome = run(composed("curves.loss.standard=verl_npu"), command="precflow")
    assert outcome.verdict == "aligned"
    assert read_model(outcome.report).curves[0].found.compared == 200


def test_no_outcome_without_the_stage():
    assert read_outcomes({}) == []
