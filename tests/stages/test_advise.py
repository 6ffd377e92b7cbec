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
