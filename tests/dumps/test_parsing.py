"""Lines of record files."""

import json

import pytest

from precflow.agent.contract import STATISTICS
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


def line_with(facts):
    return json.dumps({**LINE, "outputs": [{**LINE["outputs"][0], **facts}]})


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


def test_statistics_come_in_the_order_of_the_contract():
    counted = [-1.5, 2.0, 0.25, 6.5, 1, 2, 3, 4, 5, 6, 0, 77]
    assert len(counted) == len(STATISTICS)
    statistics = parse_call(line_with({"statistics": counted, "share": 0.25}), []).outputs[0].statistics
    assert [getattr(statistics, name) for name in STATISTICS] == counted
    assert statistics.nonfinite == 6
    assert parse_call(line_with({"share": 0.25}), []).outputs[0].share == 0.25


def test_statistics_without_what_an_agent_did_not_count_are_none_there():
    statistics = parse_call(line_with({"statistics": [None, None, None, None, 1, 2, 3, 4, 5, 6]}), []).outputs[0].statistics
    assert (statistics.minimum, statistics.high, statistics.places) == (None, None, None)
    assert parse_call(line_with({}), []).outputs[0].statistics is None


@pytest.mark.parametrize("wrong", [[1, 2], [0] * 13, ["x"] * 12])
def test_other_statistics_are_a_torn_line(wrong):
    with pytest.raises(ValueError, match=r"statistics|convert"):
        parse_call(line_with({"statistics": wrong}), [])
