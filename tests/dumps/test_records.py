"""How screens name a call."""

from precflow.agent.contract import Identity, identity_text
from precflow.dumps.records import Call, Record


def call(**changes):
    plain = {
        "order": 0,
        "level": "module",
        "module": "layers.0",
        "class_name": "Block",
        "call": 0,
        "operator": "",
        "ordinal": 0,
        "phase": "forward",
        "step": 0,
        "rank": 0,
        "site": "",
        "movement": False,
        "compiled": False,
        "arguments": {},
        "inputs": (),
        "outputs": (),
    }
    return Call(**{**plain, **changes})


def test_modules_and_operators_of_the_forward():
    assert call().name == "layers.0"
    assert call(module="", call=1).name == "(model)~1"
    assert call(operator="softmax").name == "layers.0 / softmax"


def test_other_phases_are_told():
    assert call(phase="backward", operator="mm").name == "layers.0 / mm (backward)"
    assert call(phase="gradient").name == "layers.0 (gradient)"
    assert call(phase="optimizer", module="").name == "(model) (optimizer)"


def test_a_record_tells_who_it_is_from_what_it_shares_and_what_is_its_own():
    identity = Identity("layers.0", 1, "softmax", 2, "forward", "output", "last.0", 3, 4)
    record = Record.of(identity, 17, "float32", (2,), "c0", stored=True, source=None, weight="")
    assert (record.identity, record.index, record.order) == (identity, "last.0", 17)
    assert record.text == identity_text(identity)
    assert (record.dtype, record.shape, record.content, record.stored) == ("float32", (2,), "c0", True)
