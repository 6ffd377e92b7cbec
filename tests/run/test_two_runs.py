"""Two runs of a recipe side by side: names of runs, what changed, and which records are better or worse."""

import json
import shutil
from dataclasses import replace

import pytest

from precflow import cli
from precflow.config.composition import compose
from precflow.errors import PrecflowError, StoreError
from precflow.judgement.verdicts import STATUSES
from precflow.run.find_runs import find_run
from precflow.run.manifest import Manifest
from precflow.run.pruning import PruneRequest, find_prunable, prune
from precflow.run.runner import run
from precflow.run.two_runs import FactChange, RecordState, compare_runs, find_changed_modules, is_worse
from precflow.verbs.diff import as_plain, render_page, show_difference

pytestmark = pytest.mark.xdist_group("two runs")  # with the tests of the history, which look at the same runs


@pytest.fixture
def mended(two_runs, monkeypatch):
    """Work where the two runs are."""
    monkeypatch.chdir(two_runs)


def diff(before, after):
    return compare_runs(find_run(before), find_run(after))


@pytest.mark.usefixtures("mended")
def test_a_mended_fault_is_better_and_the_verdict_changes():
    found = diff("compare_dumps@1", "runs/compare_dumps@2")
    assert (found.before, found.after) == ("compare_dumps@1", "runs/compare_dumps@2")
    assert [verdict.verdict for verdict in found.verdicts] == ["misaligned", "aligned"]
    (change,) = found.better
    assert (change.record, change.before.status, change.after.status) == (change.record, "fail", "pass")
    assert change.name == "fc2 / linear"
    assert change.before.value == pytest.approx(0.01, rel=0.5)
    assert change.after.value == 0
    assert (found.worse, found.same, found.only_before, found.only_after) == ((), 1, (), ())
    assert found.statuses == {"fail": (1, 0), "pass": (1, 2)}
    assert ("tolerance.cosine_similarity", "", "0.9") in [(one.name, one.before, one.after) for one in found.recipe]
    assert found.environment == ()
    assert found.notes == ("target: another dump was given, or it was recorded again",)


@pytest.mark.usefixtures("mended")
def test_the_other_way_round_it_is_worse():
    found = diff("compare_dumps@2", "compare_dumps@1")
    assert [change.name for change in found.worse] == ["fc2 / linear"]
    assert found.better == ()


def test_a_wider_limit_makes_no_record_better(composed):
    run(composed(factor=1.01), command="")
    run(composed("tolerance.relative_l2=0.5", "tolerance.standards=[]"), command="")
    found = diff("compare_dumps@1", "compare_dumps@2")
    assert [verdict.verdict for verdict in found.verdicts] == ["misaligned", "inconclusive"]
    assert (found.better, found.worse, found.same) == ((), (), 2)
    assert found.statuses


def test_a_changed_version_is_named_with_its_side(composed):
    facts = {"facts": {"torch": {"version": "2.5.0"}, "variables": {"HCCL_DETERMINISTIC": "true"}}}
    run(composed(name="old", **facts), command="")
    run(composed(name="new", facts={"torch": {"version": "2.6.0"}, "variables": {"HCCL_DETERMINISTIC": "true"}}), command="")
    changes = [(one.side, one.name, one.before, one.after) for one in diff("compare_dumps@1", "compare_dumps@2").environment]
    assert ("target", "torch.version", "2.5.0", "2.6.0") in changes


@pytest.mark.parametrize(
    ("one", "other", "worse"),
    [
        (RecordState("fail", "relative_l2", 1.0, 1.0, 1.0, 9), RecordState("pass", "relative_l2", 0.5, 0.5, 0.5, 0.1), True),
        (RecordState("fail", "relative_l2", 1.0, 1.0, 1.0, 9), RecordState("fail", "relative_l2", 0.95, 0.95, 0.95, 8), False),
        (RecordState("fail", "relative_l2", 1.0, 0.4, 2.0, 9), RecordState("pass", "relative_l2", 0.5, 0.3, 0.6, 0.1), False),
        (RecordState("nonfinite", "", float("inf"), 0, 0, 0), RecordState("fail", "relative_l2", 9.0, 9, 9, 99), True),
        (RecordState("nonfinite", "", float("inf"), 0, 0, 0), RecordState("shape", "", float("inf"), 0, 0, 0), False),
        (RecordState("fail", "relative_l2", 1e-9, 1e-9, 1e-9, 2), RecordState("pass", "relative_l2", 0.0, 0, 0, 0), True),
    ],
)
def test_worse_is_what_is_notably_and_certainly_worse(one, other, worse):
    assert is_worse(one, other) is worse
    assert not is_worse(other, one)


def test_losses_are_compared_where_the_dumps_are_still_those_of_the_run(composed, stage_fixtures, tmp_path):
    for name, losses in (("old", [2.0, 1.5]), ("new", [2.0, 1.125])):
        for side, seen in (("reference", [2.0, 1.0]), ("target", losses)):
            dump = stage_fixtures.builder.DumpBuilder(tmp_path / name / side, side=side)
            dump.call("fc1", "linear", [stage_fixtures.HIDDEN], [stage_fixtures.HIDDEN])
            dump.header_changes = {"losses": seen}
            dump.write()
        run(composed(name=name), command="")
    assert diff("compare_dumps@1", "compare_dumps@2").losses == (0.5, 0.125)
    shutil.rmtree(tmp_path / "old" / "target")
    assert diff("compare_dumps@1", "compare_dumps@2").losses is None
    stage_fixtures.write_pair(tmp_path / "again")
    (tmp_path / "again" / "target").rename(tmp_path / "old" / "target")  # recorded again, in its place
    assert diff("compare_dumps@1", "compare_dumps@2").losses is None


def test_a_changed_module_beside_the_script_is_named(tmp_path, stage_fixtures):
    dumps = []
    for name, modules in (
        ("old", {"train.py": "a", "nets/dit.py": "b", "gone.py": "c"}),
        ("new", {"train.py": "A", "nets/dit.py": "B", "same.py": "d"}),
        ("newer", {"train.py": "A", "nets/dit.py": "B", "same.py": "d"}),
        ("no script", {}),
    ):
        dump = stage_fixtures.builder.DumpBuilder(tmp_path / name)
        dump.call("fc1", "linear", [stage_fixtures.HIDDEN], [stage_fixtures.HIDDEN])
        dump.header_changes = {"script": {"file": "train.py", "modules": modules}}
        dumps.append(dump.write())
    old, new, newer, without = dumps
    assert find_changed_modules(old, new) == ["nets/dit.py", "same.py", "gone.py"]  # the script is a key of the recipe
    assert find_changed_modules(new, newer) == find_changed_modules(new, without) == []
    assert find_changed_modules(new, tmp_path / "pruned") == []


def test_curves_before_and_after(tmp_path, monkeypatch, capsys):
    """A mended training script: both curves lie on each other now."""
    monkeypatch.chdir(tmp_path)
    steps, loss = list(range(1, 41)), [2 + 8 / step for step in range(1, 41)]
    (tmp_path / "gpu.json").write_text(json.dumps({"step": steps, "loss": loss}))
    for apart in (0.08181, 0.0003):
        (tmp_path / "npu.json").write_text(json.dumps({"step": steps, "loss": [value + apart for value in loss]}))
        run(compose(["+recipe=loss_curves", "reference.log=gpu.json", "target.log=npu.json"]), command="")
    (curve,) = diff("loss_curves@1", "loss_curves@2").curves
    assert (curve.name, curve.verdicts[0]) == ("loss", "misaligned")
    assert curve.largest == pytest.approx((0.08181, 0.0003))
    assert cli.main(["diff", "loss_curves"]) == 0
    shown = capsys.readouterr().out
    assert "loss        largest difference of the sides   8.18e-2 -> 3e-4" in shown
    assert "better" not in shown  # there are no records
    assert cli.main(["diff", "loss_curves", "--page", "pages/both.html", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["page"] == "pages/both.html"
    assert said["curves"] == [{"name": "loss", "verdicts": ["misaligned", "aligned"], "largest": [0.08181, 0.0003]}]
    before, after = (tmp_path / "pages" / "both.html").read_text().partition("</figcaption>")[2].split("<figcaption>")
    for side in (before, after):
        assert side.count('<svg class="overlay"') == 2
        assert side.count('<polyline class="of-reference"') == side.count('<polyline class="of-difference"') == 1
        assert all(f">1e{exponent}</text>" in side for exponent in (-4, -3, -2, -1))  # the same scale, so the eye can compare
    assert "loss_curves@2" in after


def test_a_curve_that_one_run_could_not_compare(tmp_path, monkeypatch, capsys):
    """It is said, and not shown as a difference of 0."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpu.json").write_text(json.dumps({"step": [0, 1, 2], "loss": [2.0, 1.5, 1.25]}))
    for first in (100, 0):
        (tmp_path / "npu.json").write_text(json.dumps({"step": [first, first + 1, first + 2], "loss": [2.0, 1.5, 1.25]}))
        run(compose(["+recipe=loss_curves", "reference.log=gpu.json", "target.log=npu.json"]), command="")
    assert cli.main(["diff", "loss_curves", "--page", "both.html"]) == 0
    assert "largest difference of the sides   not compared -> 0" in capsys.readouterr().out
    assert (tmp_path / "both.html").read_text().count('<svg class="overlay"') == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["compare_dumps@7", "compare_dumps@1"], "has no run 7; it has runs 1 to 2"),
        (["compare_dumps@x", "compare_dumps@1"], "has no run x"),
        (["compare_dump@1", "compare_dumps@1"], "Did you mean  compare_dumps ?"),
        (["nothing", "compare_dumps"], "no run folder at nothing"),
        (["compare_dumps@1"], "no run with a verdict before run 1"),
    ],
)
@pytest.mark.usefixtures("mended")
def test_a_run_that_does_not_exist_is_refused(words, said, capsys):
    assert cli.main(["diff", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_run_without_a_verdict_is_refused_if_it_is_named_by_its_number(composed):
    run(composed(), command="")
    run(composed("stages=[dump,determinism]"), command="precflow again")
    with pytest.raises(PrecflowError):
        run(composed("stages=[compare]", name="other"), command="")
    with pytest.raises(StoreError, match=r"judged nothing: it made only .*dump\.reference") as refused:
        diff("compare_dumps@1", "compare_dumps@2")
    assert "precflow again" in str(refused.value)
    with pytest.raises(StoreError, match="could not be done"):
        diff("compare_dumps@1", "compare_dumps@3")
    assert find_run("compare_dumps").entry.number == 3
    assert find_run("compare_dumps", judged=True).entry.number == 1


def test_a_run_under_way_is_refused(composed, tmp_path):
    run(composed(), command="")
    Manifest(tmp_path / "runs" / "compare_dumps").begin("2026-11-22T10:00+00:00", "precflow three")
    with pytest.raises(StoreError, match="still under way, or was killed"):
        diff("compare_dumps@1", "compare_dumps@2")


def test_runs_of_two_recipes_are_refused(composed, tmp_path):
    run(composed(), command="")
    (tmp_path / "mine.yaml").write_text("# @package _global_\n# Another.\ndefaults: [compare_dumps, _self_]\n")
    given = [f"{side}.dump={tmp_path / 'dumps' / side}" for side in ("reference", "target")]
    run(compose([f"+recipe={tmp_path / 'mine.yaml'}", *given]), command="")
    with pytest.raises(StoreError, match="is of recipe compare_dumps, and mine@1 of mine"):
        diff("compare_dumps", "mine")


def test_a_pruned_run_says_what_is_gone(composed, tmp_path):
    run(composed(factor=1.01, name="faulty"), command="precflow one")
    run(composed(), command="")
    (found,) = find_prunable([tmp_path / "runs" / "compare_dumps"], [], PruneRequest(runs=1))
    list(prune(found, found))
    with pytest.raises(StoreError, match=r"it was deleted \(precflow prune\?\)") as refused:
        diff("compare_dumps@1", "compare_dumps@2")
    assert "precflow one" in str(refused.value)


@pytest.mark.usefixtures("mended")
def test_screen_and_json_say_the_same(capsys):
    assert cli.main(["diff", "compare_dumps@1", "compare_dumps@2"]) == 0
    shown = capsys.readouterr().out
    assert "verdict     misaligned -> aligned" in shown
    assert "better      1 record   worst: fc2 / linear   relative_l2" in shown
    assert "tolerance.cosine_similarity" in shown
    assert cli.main(["diff", "compare_dumps@1", "compare_dumps@2", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["verdicts"] == ["misaligned", "aligned"]
    assert [change["name"] for change in said["better"]] == ["fc2 / linear"]
    assert said == json.loads(json.dumps(as_plain(diff("compare_dumps@1", "compare_dumps@2"))))
    assert set(said["statuses"]) <= set(STATUSES)


@pytest.mark.usefixtures("mended")
def test_the_page_says_what_the_screen_says(tmp_path, capsys):
    page = tmp_path / "both.html"
    assert cli.main(["diff", "compare_dumps@1", "compare_dumps@2", "--page", str(page)]) == 0
    assert f"page        {page}" in capsys.readouterr().out
    text = page.read_text()
    assert "Misaligned → aligned" in text
    assert "1 better · 0 worse · 1 the same" in text
    assert "<code>fc2 /<wbr> linear</code>" in text
    assert "tolerance.<wbr>cosine_similarity" in text
    assert cli.main(["diff", "compare_dumps@1", "compare_dumps@2", "--page", str(tmp_path)]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_nothing_of_a_run_is_markup_on_the_page(two_runs, monkeypatch):
    monkeypatch.chdir(two_runs)
    found = diff("compare_dumps@1", "compare_dumps@2")
    evil = "<script>alert(1)</script>"
    (better,) = found.better
    changes = (FactChange(evil, evil, evil, "target"),)
    text = render_page(
        replace(found, before=evil, recipe=changes, notes=(evil,), better=(replace(better, name=evil),), findings_new=(evil,))
    )
    assert evil not in text
    assert text.count("&lt;script&gt;") >= 6


@pytest.mark.usefixtures("mended")
def test_an_emulated_run_says_so_wherever_its_numbers_are_shown():
    found = replace(diff("compare_dumps@1", "compare_dumps@2"), emulated=(True, False))
    assert "EMULATED" in show_difference(found).render().splitlines()[0]
    assert "EMULATED target</strong> of the earlier run" in render_page(found)


@pytest.mark.usefixtures("mended")
def test_one_run_is_compared_with_the_one_before_it(capsys):
    assert cli.main(["diff", "compare_dumps", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["before"], said["after"]) == ("compare_dumps@1", "compare_dumps@2")
