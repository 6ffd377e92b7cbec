"""Findings are written best first."""

import dump_builder as builder
import numpy as np

from precflow.stages.advise import read_findings


def test_a_fault_has_advice(pair, made):
    findings = read_findings(made(pair(factor=1.01), until="advise")["advise"])
    assert findings[0].where == "fc2 / linear"
    assert findings[0].fix


def test_other_weights_have_advice(pair, made):
    other = {"digest": "x", "entries": {"linear.weight": {"content": "c1", "dtype": "float32", "shape": [2, 3]}}}
    findings = read_findings(made(pair(weights=other), until="advise")["advise"])
    assert findings[0].rule == "PF401"


def test_given_dumps_have_no_command_to_try(pair, made):
    other = {"determinism": {"seed": 7}}
    findings = read_findings(made(pair(**other), until="advise")["advise"])
    assert [(finding.rule, finding.try_it) for finding in findings] == [("PF103", "")]


def test_a_damaged_dump_is_not_called_other_code(pair, made):
    findings = read_findings(made(pair(sealed=False), until="advise")["advise"])
    assert [finding.rule for finding in findings] == ["PF107"]


def write_elu(folder, *, alpha, recorded="0.5"):
    """Write an ``elu`` of 0.5 on the reference, and of another value on a target that may have recorded it."""
    for side, slope in (("reference", 0.5), ("target", alpha)):
        dump = builder.DumpBuilder(folder / side, side=side)
        given = np.linspace(-4, 4, 512, dtype=np.float32).reshape(32, 16)
        made = np.where(given > 0, given, slope * np.expm1(np.minimum(given, 0).astype(np.float64))).astype(np.float32)
        dump.call("act", "elu", [made], [given], arguments={"alpha": "0.5" if side == "reference" else recorded})
        dump.write()
    return folder


def test_a_target_that_takes_another_value_of_an_argument_is_advised_by_that_value(tmp_path, made):
    finding = read_findings(made(write_elu(tmp_path / "dumps", alpha=1.0), until="advise")["advise"])[0]
    assert (finding.rule, finding.certainty, finding.where) == ("PF219", "certain", "act / elu")
    assert finding.title == "elu computes as if it were called with alpha=1.0 on the target, in place of alpha=0.5"


def test_an_argument_that_truly_differs_is_advised_as_such(tmp_path, made):
    findings = read_findings(made(write_elu(tmp_path / "dumps", alpha=1.0, recorded="1.0"), until="advise")["advise"])
    assert findings[0].rule == "PF203"
    assert "PF219" not in {finding.rule for finding in findings}
    assert any(because == "the sides called it with different arguments" for _, because in findings[0].against)


def test_a_value_that_is_in_no_table_is_fitted(tmp_path, made):
    findings = read_findings(made(write_elu(tmp_path / "dumps", alpha=0.7), until="advise")["advise"])
    (finding,) = [finding for finding in findings if finding.rule == "PF219"]
    assert "0.7" in finding.title
