"""The header: what is read, and what is refused in which words."""

import json

import pytest

from precflow.dumps import header
from precflow.errors import DumpError


@pytest.fixture
def plain(build):
    return json.loads((build().call("a", "linear").write() / "dump.json").read_text())


def write(tmp_path, plain):
    path = tmp_path / "dump.json"
    path.write_text(plain if isinstance(plain, str) else json.dumps(plain))
    return path


def test_a_header_is_read(tmp_path, plain):
    read = header.read(write(tmp_path, plain))
    assert (read.side, read.dtype, read.device.name) == ("reference", "float32", "cpu")
    assert read.weights.entries["linear.weight"] == header.Entry("c0", "float32", (2, 3))
    assert read.repeat == header.Repeat(checked=True, records=2, different=(), by=("bits",))
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
def test_how_a_repeat_was_checked_is_told(tmp_path, plain, by, how):
    plain["repeat"]["by"] = by
    repeat = header.read(write(tmp_path, plain)).repeat
    assert (repeat.by, repeat.how) == (tuple(by), how)


def test_a_newer_schema_is_refused_by_name_and_version(tmp_path, plain):
    with pytest.raises(DumpError, match=r"precflow 9.9 with precflow-dump schema 2; this precflow reads schema 1"):
        header.read(write(tmp_path, {**plain, "schema": 2, "agent": "9.9"}))


@pytest.mark.parametrize("schema", [0, "1", None, True])
def test_a_senseless_schema_is_refused(tmp_path, plain, schema):
    with pytest.raises(DumpError, match="expected a number from 1 to 1"):
        header.read(write(tmp_path, {**plain, "schema": schema}))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "something"}', '"x"', "\x00\x01"])
def test_what_is_no_header_is_refused(tmp_path, text):
    with pytest.raises(DumpError, match=r"dump\.json"):
        header.read(write(tmp_path, text))


@pytest.mark.parametrize("key", ["side", "device", "dtype", "weights", "inputs", "files"])
def test_a_missing_key_is_named(tmp_path, plain, key):
    del plain[key]
    with pytest.raises(DumpError, match=f"'{key}' is missing"):
        header.read(write(tmp_path, plain))


@pytest.mark.parametrize("dtype", ["banana", "int64", "", None, 32])
def test_a_run_is_in_a_floating_point_type(tmp_path, plain, dtype):
    with pytest.raises(DumpError, match="expected a floating point type"):
        header.read(write(tmp_path, {**plain, "dtype": dtype}))


def test_a_value_of_another_kind_is_refused(tmp_path, plain):
    with pytest.raises(DumpError, match=r"is not a whole dump\.json"):
        header.read(write(tmp_path, {**plain, "weights": 3}))


@pytest.mark.parametrize("name", ["../secret.jsonl", "/etc/x.jsonl", "a/../../x.jsonl", "C:\\x.jsonl"])
def test_files_outside_of_the_folder_are_refused(tmp_path, plain, name):
    with pytest.raises(DumpError, match="outside of its folder"):
        header.read(write(tmp_path, {**plain, "files": {name: {"bytes": 0, "blake2b": "00"}}}))
