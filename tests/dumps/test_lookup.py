import numpy as np
import pytest

from precflow.dumps import lookup
from precflow.dumps.formats import read_dump
from precflow.errors import DumpError

X = np.ones((2, 3), np.float32)


@pytest.fixture
def dump(build):
    made = build()
    made.call("encoder.0", "linear", [X], {"0": X, "weight": X})
    made.call("encoder.0", "linear", [X * 2], [X])
    made.call("encoder.0", "", [X * 2], [X])
    made.call("", "", {"last_hidden_state": X * 2}, [X])
    made.call("encoder.0", "relu", [X], [X], phase="backward", step=1)
    lines = [line for lines in made.lines.values() for line in lines]
    lines[1]["inputs"][0]["source"] = [0, "0"]
    lines[2]["outputs"][0]["source"] = [1, "0"]
    lines[3]["inputs"][0]["source"] = [1, "0"]
    return read_dump(made.write())


MEANT = {
    "encoder.0/linear.1/forward.output.0": "encoder.0/linear.1/forward.output.0",
    "encoder.0/linear.0/forward.input.weight": "encoder.0/linear.0/forward.input.weight",
    "encoder.0/linear.1": "encoder.0/linear.1/forward.output.0",
    "encoder.0": "encoder.0/forward.output.0",
    "(model)": "(model)/forward.output.last_hidden_state",
    "encoder.0 / relu": "encoder.0/relu.0/backward.output.0@1.0",
    "encoder.0/relu": "encoder.0/relu.0/backward.output.0@1.0",
    "encoder.0/relu.0@1.0": "encoder.0/relu.0/backward.output.0@1.0",
    "*last_hidden*": "(model)/forward.output.last_hidden_state",
}


@pytest.mark.parametrize("text", MEANT)
def test_a_record_is_found_by_what_people_type(dump, text):
    assert lookup.find(dump, text).text == MEANT[text]


def test_every_record_is_found_by_the_name_that_screens_show(dump):
    for found in lookup.list_records(dump):
        assert lookup.find(dump, found.record.name).text == found.text


def test_several_are_named(dump):
    with pytest.raises(DumpError, match=r"encoder\.0/linear means 2 records") as refused:
        lookup.find(dump, "encoder.0/linear")
    assert "encoder.0/linear.0/forward.output.0" in refused.value.message
    assert refused.value.next_step == "name one of them"
    with pytest.raises(DumpError, match=r"means \d+ records"):
        lookup.find(dump, "*linear*")


@pytest.mark.parametrize("text", ["encoder.0/linaer.0/forward.output.0", "encoder.00", "last_hiden_state"])
def test_none_names_the_nearest(dump, text):
    with pytest.raises(DumpError, match="the nearest are") as refused:
        lookup.find(dump, text)
    assert "--match" in refused.value.next_step


def test_nothing_near_names_the_first(dump):
    with pytest.raises(DumpError, match="it has 11, the first is"):
        lookup.find(dump, "#####")


def test_a_dump_without_records_says_so(build):
    made = build()
    made.lines[0, 0] = []
    with pytest.raises(DumpError, match="holds no record"):
        lookup.find(read_dump(made.write()), "x")


def test_of_equal_identities_each_can_be_named(build):
    made = build()
    for factor in (1, 2, 3):
        made.call("a", "mul", [X * factor], ordinal=0)
    dump = read_dump(made.write())
    records = list(lookup.list_records(dump))
    texts = lookup.number_records(records)
    assert texts[1:] == ["a/mul.0/forward.output.0#2", "a/mul.0/forward.output.0#3"]
    assert [lookup.find(dump, text).record for text in texts] == [found.record for found in records]
    other = read_dump(made.write())
    assert lookup.find_same(other, records[2], among=dump).record.content == records[2].record.content
    with pytest.raises(DumpError, match="no record"):
        lookup.find(dump, "a/mul.0/forward.output.0#4")


def test_a_record_that_the_other_side_lacks(dump, build):
    other = read_dump(build("other").call("encoder.0", "linear", [X]).write())
    assert lookup.find_same(other, lookup.find(dump, "encoder.0"), among=dump) is None


def test_patterns_cover_identities_and_names(dump):
    assert len(lookup.find_matching(dump, "*.input.*")) == 6
    assert [found.text for found in lookup.find_matching(dump, "encoder.0 / relu*")] == [
        "encoder.0/relu.0/backward.input.0@1.0",
        "encoder.0/relu.0/backward.output.0@1.0",
    ]
    assert len(lookup.find_matching(dump, "linear.1")) == 2
    assert lookup.find_matching(dump, "nothing") == []


def test_where_a_record_came_from_and_where_it_went(dump):
    first, second = lookup.find(dump, "encoder.0/linear.0"), lookup.find(dump, "encoder.0/linear.1")
    assert [one.text for one in lookup.find_users(dump, first)] == ["encoder.0/linear.1/forward.input.0"]
    assert lookup.find_source(dump, lookup.find_users(dump, first)[0]) == first
    assert lookup.find_source(dump, first) is None
    module = lookup.find(dump, "encoder.0")
    assert lookup.find_source(dump, module) == second
    assert [one.text for one in lookup.find_users(dump, module)] == ["(model)/forward.input.0"]
    assert lookup.find_users(dump, lookup.find_users(dump, first)[0]) == []


def test_the_nearest_of_many_are_found_fast():
    known = [
        f"encoder.layers.{layer}.self_attn/linear.{number}/forward.output.0" for layer in range(2000) for number in range(50)
    ]
    assert lookup.find_similar("encoder.layers.17.self_atn/linear.3/forward.output.0", known)[0] == (
        "encoder.layers.17.self_attn/linear.3/forward.output.0"
    )
