import shutil

import dump_builder as builder
import numpy as np
import pytest
import torch

import precflow
from precflow.dumps import lookup
from precflow.dumps.formats import own, read_dump
from precflow.errors import ConfigError
from precflow.stages.two_dumps import compare_dumps, compare_record, show_one_record

X = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)


@pytest.fixture
def both(tmp_path):
    """Return a function that writes both sides; the target's values are those times a factor."""

    def write(factor=1.0, **changes):
        dumps = []
        for side in ("reference", "target"):
            made = builder.DumpBuilder(tmp_path / side, side=side)
            made.call("a", "linear", [X], [X * 3]).call("b", "linear", [X * (factor if side == "target" else 1)], [X], step=1)
            made.header_changes.update(changes if side == "target" else {})
            dumps.append(read_dump(made.write()))
        return dumps

    return write


def test_equal_dumps_are_aligned(both):
    model = compare_dumps(*both(), command="precflow compare a b")
    assert (model.verdict.verdict, model.command, model.recipe) == ("aligned", "precflow compare a b", "test")
    assert [row.judged.status for row in model.rows] == ["pass", "pass"]


def test_batch_norms_that_average_at_another_rate_leave_the_verdict_open(tmp_path):
    dumps = []
    for side, momentum in (("reference", "0.1"), ("target", "0.01")):
        made = builder.DumpBuilder(tmp_path / side, side=side)
        made.call("bn", "batch_norm", [X], {"0": X, "running_mean": X[0]}, arguments={"training": "True", "momentum": momentum})
        made.lines[0, 0][0]["inputs"][1]["weight"] = "bn.running_mean"
        dumps.append(read_dump(made.write()))
    verdict = compare_dumps(*dumps, command="").verdict
    assert verdict.verdict == "inconclusive"
    assert "averages its running statistics with momentum 0.1 / 0.01" in verdict.reasons[0]


def test_a_dump_beside_itself_is_never_aligned(both, tmp_path):
    reference, _ = both()
    copied = shutil.copytree(reference.path, tmp_path / "copy")
    verdict = compare_dumps(reference, read_dump(copied), command="").verdict
    assert verdict.verdict == "inconclusive"
    assert "the dump of the target is the reference's own" in verdict.reasons[0]
    with pytest.raises(ConfigError, match="a dump always agrees with itself"):
        compare_dumps(reference, reference, command="")


def test_a_difference_is_found_and_advised(both):
    model = compare_dumps(*both(2.0), command="")
    assert model.verdict.verdict == "misaligned"
    assert model.region.start == "b / linear (step 1)"
    assert all(finding.try_it.startswith(("precflow compare ", "precflow inspect ")) for finding in model.findings)
    floor = "no noise floor: two given dumps have none, a run of the recipe measures it; the fixed limits of calibrated apply"
    assert floor in model.verdict.warnings


@pytest.mark.parametrize(
    "changes",
    [{"weights": {"digest": "other", "entries": {}}}, {"determinism": {"seed": 5}}, {"inputs": {"digest": "x", "entries": {}}}],
)
def test_other_weights_inputs_or_seeds_are_never_compared(both, changes):
    model = compare_dumps(*both(**changes), command="")
    assert (model.verdict.verdict, model.rows) == ("inconclusive", ())


@pytest.mark.parametrize(("loss", "verdict"), [(1.0, "aligned"), (2.0, "misaligned")])
def test_the_losses_of_two_dumps_are_judged_too(tmp_path, loss, verdict):
    dumps = []
    for side, value in (("reference", 1.0), ("target", loss)):
        made = builder.DumpBuilder(tmp_path / side, side=side)
        made.call("a", "linear", [X], [X * 3]).header_changes["losses"] = [value]
        dumps.append(read_dump(made.write()))
    found = compare_dumps(*dumps, command="").verdict
    assert (found.verdict, [reason[:18] for reason in found.reasons]) == (
        verdict,
        ["the loss of step 0"] * (verdict == "misaligned"),
    )


@pytest.mark.parametrize(("rate", "verdict"), [(1e-3, "aligned"), (1.0000001e-3, "aligned"), (1.001e-3, "inconclusive")])
def test_steps_with_another_learning_rate_are_never_aligned(tmp_path, rate, verdict):
    """The steps may be as close as they like: here every weight moves by less than its limit."""
    dumps = []
    for side, given in (("reference", 1e-3), ("target", rate)):
        model = torch.nn.Linear(8, 2)
        for weight in model.parameters():
            torch.nn.init.constant_(weight, 100.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=given)
        with precflow.capture(model, tmp_path / side, optimizer=optimizer, phase="optimizer", level="module", detail="tensors"):
            (model(torch.full((4, 8), 1e-3)).sum() * 1e-3).backward()
            optimizer.step()
        dumps.append(read_dump(tmp_path / side))
    found = compare_dumps(*dumps, command="").verdict
    assert (found.verdict, [reason for reason in found.reasons if "settings" in reason]) == (
        verdict,
        [f"the optimizers have other settings: lr: 0.001 / {rate}"] * (verdict == "inconclusive"),
    )


def test_the_type_of_a_side_sets_its_limit(both):
    assert compare_dumps(*both(1.001), command="").verdict.verdict == "misaligned"
    assert compare_dumps(*both(1.001, dtype="float16"), command="").rows[0].judged.limit == 2.0**-8


def test_each_file_of_records_is_decoded_once(both, monkeypatch):
    seen = []
    read = own.read_records
    monkeypatch.setattr(own, "read_records", lambda path, name, *rest: seen.append(path / name) or read(path, name, *rest))
    compare_dumps(*both(2.0), command="")
    assert seen
    assert len(seen) == len(set(seen))


def test_one_record_is_measured_alone(both):
    dumps = both(2.0)
    for text, status in (("b/linear.0@1.0", "fail"), ("a/linear.0", "pass"), ("a/linear.0/forward.input.0", "pass")):
        left, right = (lookup.find(dump, text) for dump in dumps)
        row = compare_record(*dumps, left, right)
        assert (row.measure.record, row.judged.status) == (left.text, status)


def test_an_excerpt_has_one_call(both):
    dump, _ = both()
    excerpt = show_one_record(dump, lookup.find(dump, "b/linear.0@1.0"))
    assert [call.step for call in excerpt.calls()] == [1]
    assert excerpt.calls(step=0) == []
    assert excerpt.calls(step=1, rank=0)[0].outputs[0].stored


@pytest.mark.parametrize(
    ("rule", "title"),
    [
        ("PF903", "all_reduce gives other results, although every rank gives it the same bits on both sides"),
        ("PF904", "The target uses the result of fc / all_reduce before it has arrived"),
    ],
)
def test_a_collective_that_is_wrong_by_itself_is_named_from_dumps_to_advice(tmp_path, rule, title):
    """Every rank gives the same on both sides; what they get is neither a sum nor another reduction."""
    given = np.random.default_rng(1).standard_normal((2, 4, 8)).astype(np.float32)
    noise = 1 + 0.01 * np.random.default_rng(2).standard_normal((4, 8)).astype(np.float32)
    dumps = []
    for side in ("reference", "target"):
        made = builder.DumpBuilder(tmp_path / side, side=side)
        for rank in range(2):
            arguments = {"group": "[0, 1]", **({"read": "before it was done"} if (side, rule) == ("target", "PF904") else {})}
            result = given.sum(0) * (noise if side == "target" else 1)
            made.call("fc", "all_reduce", [result], [given[rank]], rank=rank, arguments=arguments)
        dumps.append(read_dump(made.write()))
    model = compare_dumps(*dumps, command="")
    assert model.verdict.verdict == "misaligned"
    assert title in {finding.rule: finding.title for finding in model.findings}[rule]
