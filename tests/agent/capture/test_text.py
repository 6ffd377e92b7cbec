import json

import pytest

from precflow.agent.capture.call_stack import ModuleCall
from precflow.agent.capture.record_lines import Heading, format_line, format_shape, format_tensor, quote
from precflow.agent.measure.batching import Ticket
from precflow.agent.measure.parts import kept_of

ODD = ["", "plain", 'a "quote" \\ name', "new\nline\tand \x00", "ünïcödé 漢字", "\ud800", "</script>"]


def ticket(detail, *, content="9f1c", stored=False, statistics=None, kept=None):
    made = Ticket(detail, kept)
    made.content, made.stored, made.statistics = content, stored, statistics
    return made


def record(detail="tensors", **changes):
    known = {"index": "0", "dtype": "float32", "shape": (2, 3), "source": (4, "1.key"), "weight": "", "detail": detail}
    return {**known, "ticket": ticket(detail), **changes}


def heading(**changes):
    frame = ModuleCall("layers.0", "Block", 2, in_scope=True, compiled=False)
    return Heading("api", frame, "add", 3, 5, movement=False, arguments={"alpha": "1"})._replace(**changes)


def test_a_line_is_json_with_every_key():
    text = format_line(7, heading(forward=[1, 2]), (4, 1), [record()], [record(source=None), record(index="1")])
    assert text.endswith("}\n")
    found = json.loads(text)
    tensors = [found.pop("inputs"), found.pop("outputs")]
    assert [len(each) for each in tensors] == [1, 2]
    assert found == {
        "order": 7,
        "level": "api",
        "module": "layers.0",
        "class": "Block",
        "call": 2,
        "operator": "add",
        "ordinal": 3,
        "phase": "forward",
        "step": 4,
        "rank": 1,
        "site": 5,
        "forward": [1, 2],
        "movement": False,
        "compiled": False,
        "arguments": {"alpha": "1"},
    }


def test_it_is_the_text_that_json_would_write():
    text = format_line(0, heading(arguments={}), (0, 0), [record()], [])
    assert text == json.dumps(json.loads(text)) + "\n"


@pytest.mark.parametrize("name", ODD)
def test_names_and_arguments_may_hold_anything(name):
    frame = ModuleCall(name, name, 0, in_scope=True, compiled=True)
    line = json.loads(
        format_line(0, heading(frame=frame, arguments={name: name}), (0, 0), [record(index=name, weight=name)], [])
    )
    assert (line["module"], line["class"], line["arguments"], line["compiled"]) == (name, name, {name: name}, True)
    assert (line["inputs"][0]["index"], line["inputs"][0]["weight"]) == (name, name)


def test_a_tensor_shows_what_its_ticket_says():
    statistics = [-1.5, 2e-45, 1.7976931348623157e308, None, 0, 1, 2, 3, 4, 5, 6, 4294967295]
    known = ticket("sketch", stored=True, statistics=statistics)
    found = json.loads(format_tensor(record("sketch", ticket=known)))
    assert found["statistics"] == statistics
    assert (found["content"], found["stored"], found["source"], found["shape"]) == ("9f1c", True, [4, "1.key"], [2, 3])


@pytest.mark.parametrize(("detail", "keys"), [("digest", set()), ("statistics", {"statistics"}), ("tensors", set())])
def test_a_record_shows_what_its_own_detail_asks_for(detail, keys):
    known = ticket("sketch", stored=True, statistics=[0] * 12)
    found = json.loads(format_tensor(record(detail, ticket=known)))
    assert set(found) - {"index", "dtype", "shape", "content", "stored", "source", "weight"} == keys
    assert found["stored"] == (detail != "digest")


def test_a_part_is_named_with_its_share():
    kept = kept_of((300, 1000), "[:3]", 1.0)
    found = json.loads(format_tensor(record(ticket=ticket("tensors", kept=kept))))
    assert (found["share"], found["part"]) == (0.01, kept.name)


def test_shapes_and_texts():
    assert [json.loads(format_shape(shape)) for shape in [(), (1,), (2, 0, 3)]] == [[], [1], [2, 0, 3]]
    assert [json.loads(quote(text)) for text in ODD] == ODD
