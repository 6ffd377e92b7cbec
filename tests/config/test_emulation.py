import pytest

from precflow import resources
from precflow.config import emulation
from precflow.config.documents import read


def said(rule):
    return {".".join(path[3:]): message for path, message in emulation.find_problems([rule])}


@pytest.mark.parametrize("file", sorted((resources.directory("conf") / "emulate").glob("*.yaml")), ids=lambda file: file.stem)
def test_every_shipped_fault_is_fine(file):
    assert list(emulation.find_problems(read(file, "emulate", file.stem).data.get("rules", []))) == []


@pytest.mark.parametrize(
    ("rule", "key", "message"),
    [
        ({"operator": "exp", "rule": "scael", "factor": 1.0}, "rule", "Did you mean  scale ?"),
        ({"operator": "exp"}, "rule", "`None` is no effect"),
        ({"rule": "scale", "factor": 1.0}, "operator", "aten names"),
        ({"operator": [], "rule": "scale", "factor": 1.0}, "operator", "aten names"),
        ({"operator": "exp", "rule": "scale"}, "", "lacks `factor`"),
        ({"operator": "exp", "rule": "scale", "facter": 1.0, "factor": 1}, "facter", "Did you mean  factor ?"),
        ({"operator": "exp", "rule": "scale", "factor": "a"}, "factor", "expected a number, got `a`"),
        ({"operator": "exp", "rule": "ulp", "distance": True}, "distance", "expected a whole number"),
        ({"operator": "exp", "rule": "scale", "factor": 1.0, "phase": "fwd"}, "phase", "not one of forward"),
        ({"operator": "exp", "rule": "scale", "factor": 1.0, "phase": "backward", "module": "a"}, "module", "no module"),
        ({"operator": "exp", "rule": "scale", "factor": 1.0, "call": -1}, "call", "from 0"),
        ({"rule": "redraw", "parameter": "a", "operator": "mm"}, "", "takes `parameter`"),
    ],
)
def test_what_no_rule_can_say(rule, key, message):
    assert message in said(rule)[key]


def test_there_are_not_endlessly_many():
    assert "at most" in next(emulation.find_problems([{}] * 101))[1]
