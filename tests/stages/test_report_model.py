import dataclasses
import json

import dump_builder as builder
import numpy as np
import pytest

from precflow import cli
from precflow.comparison.detail.quantiles import ErrorQuantiles
from precflow.diagnosis.explained import Explanation, Residuals
from precflow.dumps.formats import read_dump
from precflow.stages import report_model
from precflow.stages.report_model import detail_worst
from precflow.stages.two_dumps import compare_dumps

X = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)


@pytest.fixture
def both(tmp_path):
    """Return a function that writes both sides; the target's operator N is off by ``factors[N]``."""

    def write(*factors, store=True):
        dumps = []
        for side in ("reference", "target"):
            made = builder.DumpBuilder(tmp_path / side, side=side)
            for number, factor in enumerate(factors):
                values = X * (number + 1) * (factor if side == "target" else 1)
                made.call(f"m{number}", "linear", [values], store=store).call(f"m{number}", "", [values], store=store)
            dumps.append(read_dump(made.write()))
        return dumps

    return write


def shown(dumps, **options):
    return [one.record for one in detail_worst(*dumps, compare_dumps(*dumps, command="").rows, **options)]


def test_a_side_says_how_many_ranks_it_ran_as(tmp_path):
    dumps = []
    for side, ranks in (("reference", 1), ("target", 3)):
        made = builder.DumpBuilder(tmp_path / side, side=side)
        for rank in range(ranks):
            made.call("m", "linear", [X], rank=rank)
        dumps.append(read_dump(made.write()))
    sides = compare_dumps(*dumps, command="").sides
    assert [side.ranks for side in sides] == [1, 3]
    assert [side.title.endswith(", 3 ranks") for side in sides] == [False, True]


def test_the_worst_come_first_and_a_repetition_once(both):
    assert shown(both(1.0, 1.1, 2.0, 1.5)) == [f"m{number}/linear.0/forward.output.0" for number in (2, 3, 1)]


def test_a_suspect_is_drawn_against_the_errors_that_the_reference_has_itself(both):
    dumps = both(1.0, 1.1, 2.0)
    rows = compare_dumps(*dumps, command="").rows
    measured = ErrorQuantiles((0.5, 1.0), (1e-8, 2e-8), (1e-3, 2e-3), 16, measured=True)
    explained = Explanation(
        ("m1/linear.0/api.forward@0.0",), residuals=(Residuals("m1/linear.0/api.forward@0.0", "0", measured),)
    )
    found = {one.record: one.detail.quantiles for one in detail_worst(*dumps, rows, explanations=[explained])}
    assert found.pop("m1/linear.0/forward.output.0") == measured
    assert [one.measured for one in found.values()] == [False]  # of another record nothing was computed again


def test_what_introduces_the_error_comes_before_what_is_larger(both):
    dumps = both(1.1, 2.0)
    rows = [
        dataclasses.replace(row, role="introduces" if row.measure.module == "m0" else "inherits")
        for row in compare_dumps(*dumps, command="").rows
    ]
    assert detail_worst(*dumps, rows)[0].record.startswith("m0/")


def test_as_many_as_are_wanted(both):
    assert len(shown(both(*(1.1 + number / 10 for number in range(8))), most=3)) == 3


def test_large_tensors_are_left_to_the_verb(both, monkeypatch):
    monkeypatch.setattr(report_model, "MOST_ELEMENTS", 2 * X.size)
    assert len(shown(both(1.1, 2.0))) == 1


def test_nothing_fails_and_nothing_is_stored(both):
    assert shown(both(1.0)) == []
    assert shown(both(2.0, store=False)) == []


@pytest.mark.parametrize(
    ("wrong", "notes"), [(3, []), (5, ["causes were looked for at 3 of 5 suspects, one of each kind first"])]
)
def test_suspects_whose_tensors_nobody_looked_at_are_counted(both, wrong, notes):
    region = compare_dumps(*both(*[1.1] * wrong), command="").region
    assert len(region.suspects) == wrong
    assert [note for note in region.notes if note.startswith("causes")] == notes


def test_what_only_carries_on_an_accepted_difference_introduces_none(both):
    region = compare_dumps(*both(1.1, 1.2), command="").region
    own, *_ = region.suspects
    plain = dataclasses.replace(region, suspects=(own,), roles={own.record: "introduces"})
    carrying = dataclasses.replace(plain, suspects=(dataclasses.replace(own, accepted="a / softmax"),))
    assert report_model.find_roles(plain) == {own.record: "introduces"}
    assert report_model.find_roles(carrying) == {own.record: "inherits"}


def test_parts_that_were_not_run_are_said(both, tmp_path, monkeypatch, capsys):
    reference, target = (dump.path for dump in both(1.0, 1.0))
    monkeypatch.chdir(tmp_path)
    words = ["+recipe=compare_dumps", f"reference.dump={reference}", f"target.dump={target}", "tolerance.standards=[default]"]
    cli.main([*words, "workload.parts=[m0]", "output=ci", "report.formats=[json]"])
    capsys.readouterr()
    written = tmp_path / "runs" / "compare_dumps" / "public" / "result.json"
    result = json.loads(written.read_text(encoding="utf-8"))
    assert report_model.PARTS_NOT_RUN in result["verdict"]["warnings"]
