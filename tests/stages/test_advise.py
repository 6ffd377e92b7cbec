"""Findings are written best first."""

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
