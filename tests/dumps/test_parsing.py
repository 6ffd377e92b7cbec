"""Lines of record files."""

import json

import pytest

from precflow.agent.contract import LEVELS, PHASES, STATISTICS
from precflow.dumps.record_files import parse_call, parse_calls
from precflow.dumps.records import Statistics

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


def both(line, sites=(), place=None):
    """Read a line in both ways, which must agree."""
    slow = parse_call(line, sites, place)
    assert parse_calls(line.encode(), sites, place) == [slow]
    return slow


def test_both_ways_agree_and_later_keys_change_nothing():
    line = {**LINE, "of_a_later_version": {"x": [1]}, "forward": [3, 4]}
    line["outputs"] = [{**LINE["outputs"][0], "another": 1}]
    call = both(json.dumps(line), ["first", "second"], (0, 1))
    assert call.forward == (3, 4)
    assert [one.content for one in (*call.inputs, *call.outputs)] == ["9f", "07"]


def test_statistics_shares_and_parts_are_typed():
    numbers = [None, 2.5, 2**70, 4, 1, 2, 3, 4, 5, 6, 7, 8]
    record = {**LINE["outputs"][0], "statistics": numbers, "share": 0.25, "part": "ab12"}
    seen = both(json.dumps({**LINE, "outputs": [record]})).outputs[0]
    assert seen.statistics == Statistics(None, 2.5, float(2**70), 4, 1, 2, 3, 4, 5, 6, 7, 8)
    assert (seen.statistics.nonfinite, seen.share, seen.key) == (6, 0.25, "07.ab12")
    shorter = both(json.dumps({**LINE, "outputs": [{**record, "statistics": numbers[:10]}]})).outputs[0].statistics
    assert (shorter.saturated, shorter.high, shorter.places) == (6, None, None)


def test_statistics_come_in_the_order_of_the_contract():
    assert Statistics.__struct_fields__ == STATISTICS


@pytest.mark.parametrize("wrong", [[1, 2], [0] * 15, ["x"] * 12, {"nan": 1}])
def test_other_statistics_are_a_torn_line(wrong):
    record = {**LINE["outputs"][0], "statistics": wrong}
    with pytest.raises(ValueError, match="statistics"):
        both(json.dumps({**LINE, "outputs": [record]}))


def test_equal_words_and_arguments_share_their_memory():
    one, other = parse_calls((json.dumps(LINE) + "\n" + json.dumps(LINE) + "\n").encode(), [])
    assert one.module is other.module
    assert one.level is other.level
    assert one.inputs[0].identity.module is other.module
    assert one.arguments is other.arguments


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("phase", PHASES)
def test_every_level_and_phase_of_the_contract_is_read(level, phase):
    line = json.dumps({**LINE, "level": level, "phase": phase})
    for call in (parse_call(line, []), *parse_calls(line.encode(), [])):
        assert (call.level, call.phase, call.outputs[0].identity.phase) == (level, phase, phase)


def test_half_a_surrogate_pair_is_read_one_by_one():
    line = json.dumps({**LINE, "module": "x\udc80"})
    with pytest.raises(ValueError, match="surrogate"):
        parse_calls(line.encode(), [])
    assert parse_call(line, []).module == "x\udc80"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"level": "kernel"}, r"Invalid enum value 'kernel' - at `.*level"),
        ({"phase": "sideways"}, r"Invalid enum value 'sideways' - at `.*phase"),
        ({"order": "x"}, r"Expected `int`, got `str` - at `.*order`"),
        ({"outputs": 3}, r"Expected `array`, got `int` - at `.*outputs`"),
        ({"arguments": [1]}, r"at `.*arguments`"),
        ({"inputs": [{"index": "0"}]}, r"required field `dtype` - at `.*inputs\[0\]`"),
        ({"outputs": [{**LINE["outputs"][0], "statistics": [1.0]}]}, r"at `.*outputs\[0\].statistics`"),
        ({"order": -1}, r"Expected `int` >= 0 - at `.*order`"),
        ({"outputs": [{**LINE["outputs"][0], "shape": [10**40]}]}, r"Expected `int` <= .* at `.*shape\[0\]`"),
        ({"outputs": [{**LINE["outputs"][0], "shape": [1] * 65}]}, r"Expected `array` of length <= 64 - at `.*shape`"),
        (
            {"outputs": [{**LINE["outputs"][0], "shape": [1 << 60] * 20}]},
            "a tensor of 20 dimensions has more",
        ),
        ({"outputs": [{**LINE["outputs"][0], "share": 2}]}, r"Expected `float` <= 1.* at `.*share`"),
        ({"outputs": [{**LINE["outputs"][0], "statistics": [10**350] * 4 + [0] * 6}]}, "a sum has more than 300 digits"),
        (
            {"outputs": [{**LINE["outputs"][0], "statistics": [1.0] * 4 + [-1] * 6}]},
            r"Expected `int` >= 0 .*statistics\[4\]`",
        ),
        ({"step": 2}, "it is of rank 0 and step 2, in a file of rank 0 and step 1"),
    ],
)
def test_a_wrong_value_is_named_in_both_ways(change, message):
    line = json.dumps({**LINE, **change})
    for read in (parse_call, lambda *rest: parse_calls(line.encode(), *rest[1:])):
        with pytest.raises(ValueError, match=message):
            read(line, [], (0, 1))


@pytest.mark.parametrize("line", ["", "{", "[]", json.dumps(LINE)[:-20], "[" * 100_000])
def test_a_torn_line_is_a_value_error(line):
    with pytest.raises(ValueError, match=r"."):
        parse_call(line, [])
