"""Settings of a suspect's module: what may explain its output, and nothing else."""

from types import SimpleNamespace

import pytest

from precflow.diagnosis.evidence.of_suspect.module_settings import gather


def look(changed, *, operator=""):
    here = {"eps": "1e-05", "momentum": "0.1"}
    facts = [{"modules": {"bn": here, "ln": here}}, {"modules": {"bn": {**here, **changed}, "ln": {**here, **changed}}}]
    reference, target = (SimpleNamespace(header=SimpleNamespace(facts=each)) for each in facts)
    call = SimpleNamespace(operator=operator, module="bn")
    return gather(SimpleNamespace(reference=reference, target=target), SimpleNamespace(reference=call, target=call))


def test_its_own_settings_and_those_of_others_are_told():
    assert look({"eps": "0.1"}) == {
        "module_settings": ["eps: 1e-05 / 0.1"],
        "module_settings_declared": True,
        "module_settings_elsewhere": ["ln: eps: 1e-05 / 0.1"],
    }


def test_a_number_that_no_class_declares_is_told_as_that():
    facts = [{"modules": {"adapter": {"self.scale": scale}}} for scale in ("4.0", "0.25")]
    sides = [SimpleNamespace(header=SimpleNamespace(facts=each)) for each in facts]
    call = SimpleNamespace(operator="", module="adapter")
    found = gather(SimpleNamespace(reference=sides[0], target=sides[1]), SimpleNamespace(reference=call, target=call))
    assert found == {"module_settings": ["self.scale: 4.0 / 0.25"], "module_settings_declared": False}


@pytest.mark.parametrize(("changed", "operator"), [({}, ""), ({"momentum": "0.9"}, ""), ({"eps": "0.1"}, "batch_norm")])
def test_what_explains_no_output_is_not_told(changed, operator):
    """The momentum of running statistics changes no output of the call, and a function's arguments say it themselves."""
    assert look(changed, operator=operator) == {}
