"""Record files: whole, torn in one place, cut, missing, and large."""

import gc
import hashlib
import json
import os

import numpy as np
import pytest

from precflow.agent.contract import LEVELS, PHASES, STATISTICS
from precflow.dumps import record_files
from precflow.dumps.formats import read_dump
from precflow.dumps.header import FileSeal
from precflow.dumps.record_files import parse_call, parse_calls, read_records
from precflow.dumps.records import Statistics

NAME = "rank0/step0/records-0.jsonl"


def line(order, module="a"):
    record = {"index": "0", "dtype": "float32", "shape": [1], "content": f"{order:032x}", "stored": False}
    who = {"order": order, "level": "module", "module": module, "call": 0, "operator": "", "ordinal": 0, "phase": "forward"}
    return json.dumps({**who, "step": 0, "rank": 0, "movement": False, "inputs": [], "outputs": [record]})


@pytest.fixture
def written(tmp_path):
    """Return a function that writes lines and returns the seal of the file."""

    def write(lines, end="\n"):
        path = tmp_path / NAME
        path.parent.mkdir(parents=True)
        data = ("\n".join(lines) + end).encode()
        path.write_bytes(data)
        return FileSeal(len(data), hashlib.blake2b(data, digest_size=16).hexdigest())

    return write


def test_lines_are_read_whatever_the_size_of_the_pieces(tmp_path, written, monkeypatch):
    seal = written([line(order, "x" * order) for order in range(60)])
    for size in (1, 7, 300, 1 << 18):
        monkeypatch.setattr(record_files, "_CHUNK", size)
        calls, damage, _ = read_records(tmp_path, NAME, seal, [])
        assert damage == []
        assert [call.order for call in calls] == list(range(60))


def test_one_torn_line_of_many_is_told_by_its_number_and_costs_itself_alone(tmp_path, written):
    lines = [line(order) for order in range(20_000)]
    lines[12_344] = lines[12_344][:50]
    lines[19_999] = "[]"
    calls, damage, _ = read_records(tmp_path, NAME, written(lines), [])
    assert [text.partition(" ")[0] for text in damage] == [f"{NAME}:12345", f"{NAME}:20000"]
    assert len(calls) == 19_998


@pytest.mark.parametrize(
    ("second", "left"), [("", [0, 3]), (line(1) + line(2), [0, 3]), ("null", [0, 3]), (" " + line(2), [0, 2, 3])]
)
def test_what_is_not_one_object_is_torn(tmp_path, written, second, left):
    calls, damage, _ = read_records(tmp_path, NAME, written([line(0), second, line(3)]), [])
    assert [call.order for call in calls] == left
    assert [text.partition(" ")[0] for text in damage] == ([f"{NAME}:2"] if len(left) == 2 else [])


def test_a_last_line_without_its_end_counts_and_half_of_one_does_not(tmp_path, written):
    calls, damage, _ = read_records(tmp_path, NAME, written([line(0), line(1)], end=""), [])
    assert (len(calls), damage) == (2, [])
    path = tmp_path / NAME
    path.write_bytes(path.read_bytes()[:-1])
    calls, damage, _ = read_records(tmp_path, NAME, None, [])
    assert len(calls) == 1
    assert damage[0].startswith(f"{NAME}:2 is torn")


def test_seals_are_compared(tmp_path, written):
    seal = written([line(0)])
    path, data = tmp_path / NAME, (tmp_path / NAME).read_bytes()
    for changed, said, trusted in (
        (data + b"\n", "too long", False),
        (data[:-1], "cut short", True),
        (data.replace(b'"module": "a"', b'"module": "b"'), "is damaged: its bytes do not have the checksum", False),
    ):
        path.write_bytes(changed)
        found = read_records(tmp_path, NAME, seal, [])
        assert said in found.problems[0]
        assert found.altered == ("" if trusted else found.problems[0])
    path.write_bytes(data)
    for blake2b in ("", "00", "zz" * 16):
        assert "is damaged" in read_records(tmp_path, NAME, FileSeal(len(data), blake2b), [])[1][0]
    path.unlink()
    assert read_records(tmp_path, NAME, seal, []) == ([], [f"{NAME} is missing"], "")
    path.mkdir()
    assert "cannot be read" in read_records(tmp_path, NAME, None, [])[1][0]


def test_the_collector_is_as_it_was(tmp_path, written):
    seal = written([line(0)])
    read_records(tmp_path, NAME, seal, [])
    assert gc.isenabled()
    gc.disable()
    read_records(tmp_path, NAME, seal, [])
    assert not gc.isenabled()
    gc.enable()


def test_a_hundred_thousand_records_with_long_and_strange_names(tmp_path, written):
    names = ["层." * 80, "a/b\\c:d", "x" * 5000, "..", "\u2028\x85\x00", "con", "%2F~1@0.0()", "<script>"]
    written([line(order, names[order % len(names)]) for order in range(100_000)])
    dump = read_dump(tmp_path, allow_unsealed=True)
    calls = dump.calls()
    assert len(calls) == 100_000
    assert [call.module for call in calls[:8]] == names
    assert len({call.outputs[0].text for call in calls[:8]}) == 8
    assert len(dump.damage) == 1


def test_tensors_of_no_one_and_five_billion_bytes(build, content_of):
    dump = build().call("a", "linear", [np.zeros((0, 3), np.float32), np.float32(2), np.zeros(4, np.uint8)])
    record = dump.lines[0, 0][0]["outputs"][2]
    large = 5 << 30
    record.update(shape=[large])
    folder = dump.write(sealed=False)
    path = folder / "rank0/step0/tensors-0.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    index = json.loads(data[8 : 8 + length])
    slot = index[content_of(np.zeros(4, np.uint8))]
    slot.update(shape=[large], data_offsets=[slot["data_offsets"][0], slot["data_offsets"][0] + large])
    text = json.dumps(index).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data[8 + length :])
        os.truncate(file.fileno(), 8 + len(text) + slot["data_offsets"][1])
    read = read_dump(folder, allow_unsealed=True)
    empty, one, most = read.calls()[0].outputs
    assert read.tensor(empty).shape == (0, 3)
    assert read.tensor(one) == 2
    view = read.view(most)
    assert view.shape == (large,)
    assert view[large - 1] == 0


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
    assert (call.name, call.site, call.arguments) == ("layers.0.attn / softmax.2 (step 1)", "second", {"dim": "-1"})
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
    assert Statistics.__struct_fields__ == (*STATISTICS, "rounding")  # the last one is of other tools' statistics


@pytest.mark.parametrize("wrong", [[1, 2], [0] * 16, ["x"] * 12, {"nan": 1}])
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
    here, there = one.inputs[0], other.inputs[0]
    assert (here.dtype is there.dtype, here.content is there.content, here.shape is there.shape) == (True, True, True)


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
        (
            {"outputs": [{**LINE["outputs"][0], "statistics": [10**350] * 4 + [0] * 6}]},
            "beyond what a float64 holds|more than 300 digits",
        ),
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
