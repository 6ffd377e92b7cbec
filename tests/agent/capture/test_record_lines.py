import json

import pytest
import torch

from precflow.agent.capture import record_lines as lines_module
from precflow.agent.capture.call_stack import CallStack, ModuleCall
from precflow.agent.capture.record_lines import Heading, Lines, format_line, format_shape, format_tensor, quote
from precflow.agent.capture.weights import Weights
from precflow.agent.dump.writer import WriteError, Writer
from precflow.agent.measure.content_id import content_id
from precflow.agent.measure.parts import choose_part
from precflow.agent.measure.ticket import Ticket
from precflow.agent.selection import Choice, DetailRule, Selection

KEYS = "order level module class call operator ordinal phase step rank site forward movement compiled arguments inputs outputs"
KEYS = KEYS.split()


def heading(operator="add"):
    frame = CallStack(Selection()).enter("layers.0", "Block", compiled=False)
    return Heading("api", frame, operator, 2, 5, movement=False, arguments={"alpha": "1"})


def made(writer=None, *, detail="tensors", rank=0):
    lines = Lines(writer, Weights(), detail=detail, rank=rank)
    lines.begin_step(4)
    return lines


def test_a_line_has_the_keys_of_the_contract_in_order(tmp_path):
    writer = Writer(str(tmp_path))
    lines = made(writer, rank=1)
    tensor = torch.ones(2, 3)
    lines.emit(heading(), lines.describe([("0", tensor)], store=True), [])
    lines.flush()
    line = json.loads((tmp_path / "rank1/step4/records-0.jsonl").read_text())
    assert list(line) == KEYS
    assert [line[key] for key in KEYS[:11]] == [0, "api", "layers.0", "Block", 0, "add", 2, "forward", 4, 1, 5]
    assert line["inputs"] == [
        {
            "index": "0",
            "dtype": "float32",
            "shape": [2, 3],
            "content": content_id(tensor),
            "stored": True,
            "source": None,
            "weight": "",
        }
    ]


def test_order_counts_lines_and_starts_anew_with_a_step():
    lines = made()
    assert [lines.emit(heading(), [], []) for _ in range(3)] == [0, 1, 2]
    lines.begin_step(5)
    assert lines.emit(heading(), [], []) == 0


def test_outputs_are_kept_by_identity():
    lines = made()
    lines.emit(heading(), [], lines.describe([("0", torch.ones(1))], store=False))
    assert lines.output_contents == {"layers.0/add.2/forward.output.0@4.0": content_id(torch.ones(1))}
    assert lines.records == 1
    lines.begin_step(5)
    assert lines.output_contents == {}
    assert lines.records == 1


def test_weights_are_named_and_not_read():
    weights, linear = Weights(), torch.nn.Linear(2, 2)
    weights.learn(linear)
    lines = Lines(None, weights, detail="tensors", rank=0)
    found = shown(lines, linear.weight)
    assert (found["weight"], found["content"], found["stored"], found["source"]) == ("weight", "", False, None)
    found = shown(lines, linear.weight, returned=True)
    assert (found["weight"], found["content"]) == ("weight", content_id(linear.weight))


@pytest.mark.parametrize(
    ("detail", "store", "sample", "kept"),
    [
        ("tensors", True, 1.0, True),
        ("tensors", False, 1.0, False),  # of data movement
        ("tensors", True, 0.5, False),  # half of a weight does not compute anything
        ("digest", True, 1.0, False),
        ("sketch", True, 1.0, False),
    ],
)
def test_weights_that_are_kept_are_stored_once_whole_with_the_tensors(tmp_path, detail, store, sample, kept):
    weights, linear, writer = Weights(), torch.nn.Linear(512, 512), Writer(str(tmp_path))
    weights.learn(linear)
    lines = Lines(writer, weights, detail="tensors", rank=0, keep_weights=True)
    lines.begin_step(0)
    choice = Choice(detail, DetailRule(sample=sample) if sample < 1.0 else None)
    found = [lines.describe([("1", linear.weight)], store=store, choice=choice) for _ in range(2)]
    lines.emit(heading("linear"), [*found[0], *found[1]], [])
    lines.flush()
    line = json.loads((tmp_path / "rank0/step0/records-0.jsonl").read_text())
    for record in line["inputs"]:
        assert (record["weight"], record["stored"]) == ("weight", kept)
        assert record["content"] == (content_id(linear.weight) if kept else "")
    assert writer.counts["tensors"] == kept


def shown(lines, tensor, **options):
    """Return a tensor as a line shows it."""
    (record,) = lines.describe([("0", tensor)], store=options.pop("store", True), **options)
    lines.flush()
    return json.loads(format_tensor(record))


LARGE = torch.randn(3, 20000)
SMALL = torch.arange(6.0)


@pytest.mark.parametrize("tensor", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("detail", ["digest", "statistics", "sketch", "tensors"])
def test_details_keep_what_they_say(tmp_path, tensor, detail):
    writer = Writer(str(tmp_path))
    found = shown(made(writer, detail=detail), tensor)
    assert found["content"] == ("" if detail == "statistics" else content_id(tensor))
    assert ("mark" in found) == (detail == "statistics")
    assert ("statistics" in found) == (detail in ("statistics", "sketch"))
    whole = detail == "tensors" or (detail == "sketch" and tensor is SMALL)
    assert found["stored"] == writer.stored(found["content"]) == whole
    sketched = detail == "sketch" and tensor is LARGE
    assert writer.stored(found["content"] + ".sketch") == writer.stored(found["content"] + ".rows") == sketched


@pytest.mark.parametrize("detail", ["statistics", "sketch", "tensors"])
def test_movement_has_its_content_only(tmp_path, detail):
    lines = made(Writer(str(tmp_path)), detail=detail)
    shown(lines, SMALL)
    found = shown(lines, SMALL, store=False)
    content = "" if detail == "statistics" else content_id(SMALL)
    assert (found["content"], found["stored"], "statistics" in found, "mark" in found) == (content, False, False, False)


def test_a_rule_decides_for_its_calls(tmp_path):
    lines = made(Writer(str(tmp_path)), detail="digest")
    assert shown(lines, SMALL, choice=Choice("tensors", None))["stored"] is True
    assert shown(lines, SMALL)["stored"] is False


def test_a_part_is_kept_and_named(tmp_path):
    writer = Writer(str(tmp_path))
    lines = made(writer)
    found = shown(lines, LARGE, choice=Choice("tensors", DetailRule(slices="[1]")))
    assert found["content"] == content_id(LARGE)
    assert found["share"] == pytest.approx(1 / 3)
    assert writer.stored(f"{found['content']}.{found['part']}")
    assert not writer.stored(found["content"])
    assert "share" not in shown(lines, LARGE)
    assert "share" not in shown(lines, LARGE, choice=Choice("tensors", DetailRule(sample=0.5)))  # small enough to be kept whole


def test_lines_wait_and_are_written_in_order(tmp_path):
    lines = made(Writer(str(tmp_path)))
    file = tmp_path / "rank0/step4/records-0.jsonl"
    for number in range(5):
        lines.emit(heading(), [], lines.describe([("0", SMALL + number)], store=True))
    assert file.read_text() == ""
    lines.flush()
    found = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["order"] for line in found] == [0, 1, 2, 3, 4]
    assert [line["outputs"][0]["content"] for line in found] == [content_id(SMALL + number) for number in range(5)]


def test_what_waits_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(lines_module, "MOST_LINES", 3)
    lines = made(Writer(str(tmp_path)))
    for _ in range(4):
        lines.emit(heading(), [], [])
    assert len((tmp_path / "rank0/step4/records-0.jsonl").read_text().splitlines()) == 3


def test_nothing_is_written_after_a_failure(tmp_path):
    writer = Writer(str(tmp_path), budget_bytes=10)
    lines = made(writer)
    lines.emit(heading(), [], lines.describe([("0", torch.ones(5))], store=True))
    with pytest.raises(WriteError):
        lines.flush()
    lines.emit(heading(), [], [])
    lines.flush()
    assert writer.counts["calls"] == 0


ODD = ["", "plain", 'a "quote" \\ name', "new\nline\tand \x00", "ünïcödé 漢字", "\ud800", "</script>"]


def ticket(detail, *, content="9f1c", stored=False, statistics=None, kept=None):
    made = Ticket(detail, kept)
    made.content, made.stored, made.statistics = content, stored, statistics
    return made


def record(detail="tensors", **changes):
    known = {"index": "0", "dtype": "float32", "shape": (2, 3), "source": (4, "1.key"), "weight": "", "detail": detail}
    return {**known, "ticket": ticket(detail), **changes}


def call_heading(**changes):
    module_call = ModuleCall("layers.0", "Block", 2, in_scope=True, compiled=False)
    return Heading("api", module_call, "add", 3, 5, movement=False, arguments={"alpha": "1"})._replace(**changes)


def test_a_line_is_json_with_every_key():
    text = format_line(7, call_heading(forward=[1, 2]), (4, 1), [record()], [record(source=None), record(index="1")])
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
    text = format_line(0, call_heading(arguments={}), (0, 0), [record()], [])
    assert text == json.dumps(json.loads(text)) + "\n"


@pytest.mark.parametrize("name", ODD)
def test_names_and_arguments_may_hold_anything(name):
    module_call = ModuleCall(name, name, 0, in_scope=True, compiled=True)
    described = call_heading(module_call=module_call, arguments={name: name})
    line = json.loads(format_line(0, described, (0, 0), [record(index=name, weight=name)], []))
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
    kept = choose_part((300, 1000), "[:3]", 1.0)
    found = json.loads(format_tensor(record(ticket=ticket("tensors", kept=kept))))
    assert (found["share"], found["part"]) == (0.01, kept.name)


def test_shapes_and_texts():
    assert [json.loads(format_shape(shape)) for shape in [(), (1,), (2, 0, 3)]] == [[], [1], [2, 0, 3]]
    assert [json.loads(quote(text)) for text in ODD] == ODD
