"""The header: what is read, and what is refused in which words."""

import dataclasses
import json

import pytest

from precflow.agent.contract import DUMP_SCHEMA, EMPTY_HEADER
from precflow.dumps import header
from precflow.errors import DumpError


@pytest.fixture
def plain(build):
    return json.loads((build().call("a", "linear").write() / "dump.json").read_text())


@pytest.fixture
def write(tmp_path, with_checksum):
    """Return a function that writes a header with the checksum that its agent would give it, or a text as it is."""

    def written(plain):
        path = tmp_path / "dump.json"
        path.write_text(plain if isinstance(plain, str) else json.dumps(with_checksum(plain)))
        return path

    return written


def test_a_header_is_read(write, plain):
    read = header.read(write(plain))
    assert (read.side, read.dtype, read.device.name) == ("reference", "float32", "cpu")
    assert read.weights.entries["linear.weight"] == header.ContentEntry("c0", "float32", (2, 3))
    assert read.repeat == header.RepeatCheck(checked=True, records=2, different=(), by=("bits",))
    assert read.files["rank0/step0/records-0.jsonl"].bytes > 0
    assert read.sites[0].startswith("model.py:3")


@pytest.mark.parametrize(
    ("by", "how"),
    [
        ([], "in a way that the dump does not name"),
        (["bits"], "bitwise"),
        (["statistics"], "by statistics"),
        (["bits", "statistics"], "bitwise, or by statistics where these are all that is kept"),
    ],
)
def test_how_a_repeat_was_checked_is_told(write, plain, by, how):
    plain["repeat"]["by"] = by
    repeat = header.read(write(plain)).repeat
    assert (repeat.by, repeat.how) == (tuple(by), how)


def test_a_newer_schema_is_refused_by_name_and_version(write, plain):
    words = rf"newer precflow: the agent of precflow 9.9 with precflow-dump schema 99; this precflow reads schema {DUMP_SCHEMA}"
    with pytest.raises(DumpError, match=words):
        header.read(write({**plain, "schema": 99, "agent": "9.9"}))


def test_an_older_schema_is_refused_because_nothing_sealed_its_header(write, plain):
    with pytest.raises(DumpError, match=r"older precflow.* schema 1, which does not seal its header"):
        header.read(write({**plain, "schema": 1}))


@pytest.mark.parametrize("schema", [0, "1", None, True, 1.5])
def test_a_senseless_schema_is_refused(write, plain, schema):
    with pytest.raises(DumpError, match="expected 2"):
        header.read(write({**plain, "schema": schema}))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "something"}', '"x"', "\x00\x01"])
def test_what_is_no_header_is_refused(write, text):
    with pytest.raises(DumpError, match=r"dump\.json"):
        header.read(write(text))


def test_a_header_has_a_key_for_each_attribute(plain):
    assert set(plain) == {*EMPTY_HEADER, "checksum"} == {one.name for one in dataclasses.fields(header.Header)}


ADDED = {"script", "observer", "ran", "compiled", "loss_steps", "updates", "tool", "lacks", "fused", "conversion"}


def test_keys_that_were_added_may_be_missing(write, plain):
    for name in ADDED:
        del plain[name]
    seen = header.read(write(plain))
    assert (seen.script, seen.observer, seen.loss_steps, seen.updates) == ({}, header.ObserverCheck(), (), {})


@pytest.mark.parametrize(
    "key",
    [
        *sorted(EMPTY_HEADER.keys() - ADDED),
        "device.emulated",
        "repeat.different",
        "weights.entries",
        "counts.records",
    ],
)
def test_every_key_is_required_and_named(write, plain, key):
    *places, last = key.split(".")
    holder = plain[places[0]] if places else plain
    del holder[last]
    with pytest.raises(DumpError, match=rf"{key} is missing|expected format|says schema None"):
        header.read(write(plain))


def test_a_dump_of_msprobe_is_refused_by_its_name(write):
    with pytest.raises(DumpError, match="was written by msprobe, whose dumps cannot be read here") as refused:
        header.read(write({"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": None, "data": {}}))
    assert "precflow.capture" in refused.value.next_step


@pytest.mark.parametrize("place", ["", "device", "weights", "inputs", "repeat", "counts", "weights.entries.linear.weight"])
def test_a_key_of_a_later_version_is_refused(write, plain, place):
    holder = plain["weights"]["entries"]["linear.weight"] if "." in place else plain[place] if place else plain
    holder["colour"] = "red"
    with pytest.raises(DumpError, match=r"does not know, as a newer one may write: .*colour"):
        header.read(write(plain))


BEYOND = 1 << 70
WRONG = [
    ("counts", {"calls": 1.5, "records": 2, "tensors": 1, "bytes": 1}),
    ("counts", {"calls": -1, "records": 2, "tensors": 1, "bytes": 1}),
    ("counts", {"calls": BEYOND, "records": 2, "tensors": 1, "bytes": 1}),
    ("repeat", {"checked": True, "records": 2, "by": ["bits"], "different": [{"a": 1}]}),
    ("repeat", {"checked": 1, "records": 2, "by": ["bits"], "different": []}),
    ("device", {"name": "npu", "kind": "", "description": "", "emulated": "no"}),
    ("sites_of_ranks", {"9" * 5000: ["a.py:1"]}),
    ("sites_of_ranks", {"-1": ["a.py:1"]}),
    ("dropped", {"0": 7}),
    ("sites", "model.py"),
    ("recipe", ["x"]),
    ("recipe", None),
    ("side", "both"),
    ("emulate", {"name": ["x"], "rules": []}),
    ("emulate", {"rules": []}),
    ("capture", {"level": "module"}),
    ("capture", {"step": [BEYOND]}),
    ("weights", 3),
    ("weights", {"digest": "w", "entries": {"a": {"content": "c", "dtype": "float32", "shape": [1e5]}}}),
    ("weights", {"digest": "w", "entries": {"a": {"content": "c", "dtype": "float32", "shape": [BEYOND]}}}),
    ("files", []),
    ("files", {"rank0/step0/records-0.jsonl": {"bytes": 1}}),
    ("files", {"rank0/step0/records-0.jsonl": {"bytes": True, "blake2b": "00"}}),
    ("files", {"rank0/step0/records-0.jsonl": {"bytes": 1, "blake2b": "00", "index": "00"}}),
    ("draws", [3]),
    ("seconds", {"forward": "long"}),
]


@pytest.mark.parametrize(("key", "value"), WRONG)
def test_a_value_of_another_kind_or_size_is_refused(write, plain, key, value):
    with pytest.raises(DumpError, match=r"is not a whole dump\.json"):
        header.read(write({**plain, key: value}))


@pytest.mark.parametrize(
    "text", ['{"facts": %s}' % ("[" * 100_000), '{"a": 1e999}', '{"a": %s}' % ("7" * 5000), '{"a": 1, "a": 2}']
)
def test_json_that_is_out_of_bounds_is_refused_in_words(write, text):
    with pytest.raises(DumpError, match=r"nested too deeply|beyond what a float64 holds|has 5000 digits|appears twice"):
        header.read(write(text))


def test_facts_that_are_nested_too_deeply_are_refused(write, plain):
    nested = []
    for _ in range(500):
        nested = [nested]
    with pytest.raises(DumpError, match="nested too deeply, expected at most 64 levels"):
        header.read(write({**plain, "facts": {"a": nested}}))


@pytest.mark.parametrize(
    "change", [{"checksum": ""}, {"checksum": None}, {"checksum": 7}, {"recipe": "other"}, {"facts": {"x": 1}}]
)
def test_what_was_changed_since_it_was_sealed_is_damage(tmp_path, plain, change):
    path = tmp_path / "dump.json"
    path.write_text(json.dumps({**plain, **change}))
    with pytest.raises(DumpError, match="does not have the checksum that it was sealed with"):
        header.read(path)


def test_the_order_of_keys_and_white_space_say_nothing(tmp_path, plain):
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(dict(reversed(plain.items())), indent=3))
    assert header.read(path).recipe == "test"


@pytest.mark.parametrize("dtype", ["banana", "int64", ""])
def test_a_run_is_in_a_floating_point_type(write, plain, dtype):
    with pytest.raises(DumpError, match="expected a floating point type"):
        header.read(write({**plain, "dtype": dtype}))


@pytest.mark.parametrize("name", ["../secret.jsonl", "/etc/x.jsonl", "a/../../x.jsonl", "C:\\x.jsonl"])
def test_files_outside_of_the_folder_are_refused(write, plain, name):
    with pytest.raises(DumpError, match="outside of its folder"):
        header.read(write({**plain, "files": {name: {"bytes": 0, "blake2b": "00"}}}))


def test_losses_are_counted_where_the_header_does_not_say_their_steps():
    assert header.Header(losses=(2.0, 1.0), loss_steps=(10, 11)).loss_of_step == {10: 2.0, 11: 1.0}
    assert header.Header(losses=(2.0, 1.0)).loss_of_step == {0: 2.0, 1: 1.0}


@pytest.mark.parametrize("steps", [[10], [10, "11"], "ab", {"10": 0}, [10, -1], [1, 2, 3]])
def test_steps_of_losses_that_are_none_are_refused(write, plain, steps):
    with pytest.raises(DumpError, match="is not a whole"):
        header.read(write({**plain, "losses": [2.0, 1.0], "loss_steps": steps}))
