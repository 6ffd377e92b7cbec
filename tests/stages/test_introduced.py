"""Standards for operators through the stage itself: an agent evaluates two dumps, and the verdict says the outcome."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from precflow.config.sections import standards
from precflow.dumps.formats import read_dump
from precflow.errors import SideError
from precflow.stages import evaluation, introduced

_SPEC = importlib.util.spec_from_file_location("stage_fixtures", Path(__file__).with_name("conftest.py"))
_FIXTURES = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_FIXTURES)
builder, HIDDEN = _FIXTURES.builder, _FIXTURES.HIDDEN
STACK = ("default", "cann_single", "cann_mixed", "cann_mixed_2026_07", "assert_close")


def write_exp(folder, *, factor=1.0):
    for side, scale in (("reference", 1.0), ("target", factor)):
        dump = builder.DumpBuilder(folder / side, side=side)
        dump.call("act", "exp", [np.exp(HIDDEN) * np.float32(scale)], [HIDDEN])
        dump.write()
    return folder


@pytest.mark.parametrize(
    ("factor", "failed"),
    [
        (1 + 2**-20, []),
        (1 + 2**-10, ["default", "cann_single", "cann_mixed", "assert_close"]),
        (1.01, list(STACK)),
    ],
)
def test_each_standard_judges_the_operator_by_its_own_numbers(tmp_path, made, factor, failed):
    folder = write_exp(tmp_path / "dumps", factor=factor)
    folders = made(folder, f"tolerance.standards=[{','.join(STACK)}]", until="introduced")
    _, verdict, _ = introduced.read_conclusion(folders)
    assert [name for name, met in verdict.standards.items() if not met] == failed
    assert verdict.not_applied == {}
    for name in failed[1:]:
        assert any(reason.startswith(f"{name} (2026-") and "): 1 output" in reason for reason in verdict.reasons)
    assert not any("was not applied" in reason for reason in verdict.reasons)
    assert not (folders["introduced"] / "errors.json").exists()


def test_an_operator_standard_is_part_of_the_key_only_where_it_is_asked_for(pair, job_of):
    folder = pair()
    declare = introduced.STAGE.declare
    plain = declare(job_of(folder))
    assert declare(job_of(folder, "tolerance.standards=[default,allclose]")) == plain
    mixed = declare(job_of(folder, "tolerance.standards=[default,cann_mixed]"))
    assert mixed != plain
    assert declare(job_of(folder, "tolerance.standards=[default,cann_dual]")) != mixed


def test_a_dump_without_tensors_leaves_the_standard_open(tmp_path, made):
    folder = tmp_path / "dumps"
    for side in ("reference", "target"):
        dump = builder.DumpBuilder(folder / side, side=side)
        dump.call("fc", "linear", [HIDDEN], [HIDDEN])  # without a weight no linear can be computed
        dump.write()
    _, verdict, _ = introduced.read_conclusion(made(folder, "tolerance.standards=[default,cann_mixed]", until="introduced"))
    assert verdict.verdict == "inconclusive"
    assert list(verdict.not_applied) == ["cann_mixed"]
    assert "1 output of an operator could not be held to it" in verdict.not_applied["cann_mixed"]


def test_every_shipped_standard_says_what_it_judges():
    for name in standards.names():
        file, _ = standards.read_standard(standards.find(name))
        sections = [file.limits, file.operators, file.benchmark, file.losses]
        assert sum(map(bool, sections)) == 1, name


def test_a_changed_limit_evaluates_nothing_again(pair, job_of):
    folder = pair()
    assert evaluation.STAGE.reads == ("dump", "determinism", "compare")  # nothing that knows a limit
    plain = evaluation.STAGE.declare(job_of(folder))
    assert evaluation.STAGE.declare(job_of(folder, "tolerance.cosine_similarity=0.9999")) == plain
    assert evaluation.STAGE.declare(job_of(folder, "tolerance.standards=[default,cann_mixed]")) != plain


@pytest.fixture
def failing(monkeypatch):
    """Return a function that has the agent of the evaluation fail in a way."""

    def fail(kind):
        def run_agent(*_, **__):
            raise SideError("the agent is gone", kind=kind)

        monkeypatch.setattr(evaluation, "run_agent", run_agent)

    return fail


def test_an_evaluation_without_torch_is_said_in_the_verdict_and_made_once_there_is_one(pair, made, failing, monkeypatch):
    failing("workload")
    results, seal = [], evaluation.StageResult
    monkeypatch.setattr(evaluation, "StageResult", lambda **facts: results.append(seal(**facts)) or results[-1])
    _, verdict, region = introduced.read_conclusion(made(pair(), until="introduced"))
    assert verdict.warnings[-1] == region.notes[-1] == "no call was evaluated in float64: the agent is gone"
    assert results[0].damaged


@pytest.mark.parametrize("kind", ["", "memory", "disk_full", "bad_request"])  # "": it was killed
def test_an_evaluation_that_did_not_come_to_its_end_has_found_nothing_out(pair, made, failing, kind):
    failing(kind)
    with pytest.raises(SideError, match="the agent is gone"):
        made(pair(), until="introduced")


def test_calls_that_were_not_kept_whole_are_counted(tmp_path, pair):
    folder, work = pair(), tmp_path / "work"
    work.mkdir()
    sides = [read_dump(folder / side) for side in ("reference", "target")]
    lost = Lost(sides[1], "fc2")
    assert evaluation.evaluate_calls(*sides, folder=work, evaluate=lambda _: None).not_whole == 0
    assert evaluation.evaluate_calls(sides[0], lost, folder=work, evaluate=lambda _: None).not_whole == 1


class Lost:
    """A dump that has lost the tensors of one module."""

    def __init__(self, dump, module):
        self._dump, self._module = dump, module
        self.header, self.calls, self.tensor = dump.header, dump.calls, dump.tensor

    def locate(self, record):
        return None if record.identity.module == self._module else self._dump.locate(record)
