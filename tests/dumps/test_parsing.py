"""Lines of record files."""

import json

import pytest

from precflow.dumps.parsing import parse_call

LINE = {
    "order": 17,
    "level": "api",
    "module": "layers.0.attn",
    "class": "Attention",
    "call": 0,
    "operator": "softmax",
    "ordinal": 2,
    "phase": "forward",
    "step": 1,
    "rank": 0,
    "site": 1,
    "movement": False,
    "compiled": False,
    "arguments": {"dim": "-1"},
    "inputs": [
        {"index": "0", "dtype": "float32", "shape": [3, 2], "content": "9f", "stored": True, "source": [16, "0"], "weight": ""}
    ],
    "outputs": [
        {"index": "0", "dtype": "float32", "shape": [], "content": "07", "stored": False, "source": None, "weight": ""}
    ],
}


def test_a_line_becomes_a_call():
    call = parse_call(json.dumps(LINE), ["first", "second"])
    assert (call.name, call.site, call.arguments) == ("layers.0.attn / softmax", "second", {"dim": "-1"})
    assert call.inputs[0].source == (16, "0")
    assert call.inputs[0].text == "layers.0.attn/softmax.2/forward.input.0@1.0"
    assert call.outputs[0].source is None
    assert call.outputs[0].shape == ()


@pytest.mark.parametrize("site", [None, 7, -1])
def test_an_unknown_site_is_empty(site):
    assert parse_call(json.dumps({**LINE, "site": site}), ["first"]).site == ""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"level": "kernel"}, "unknown level"),
        ({"phase": "sideways"}, "unknown level 'api' or phase 'sideways'"),
        ({"order": "x"}, "invalid literal"),
        ({"outputs": 3}, "not iterable"),
        ({"arguments": [1]}, "items"),
        ({"inputs": [{"index": "0"}]}, "'dtype' is missing"),
    ],
)
def test_a_wrong_value_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        parse_call(json.dumps({**LINE, **change}), [])


@pytest.mark.parametrize("line", ["", "{", "[]", json.dumps(LINE)[:-20]])
def test_a_torn_line_is_a_value_error(line):
    with pytest.raises(ValueError, match=r"."):
        parse_call(line, [])
