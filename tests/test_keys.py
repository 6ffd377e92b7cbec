"""Keys are equal for equal declarations and say what differs."""

import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precflow import keys
from precflow.errors import StoreError

plain_data = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=5), plain_data, max_size=6))
def test_digest_does_not_depend_on_the_order_of_keys(data):
    assert keys.digest(data) == keys.digest(dict(reversed(data.items())))


@given(plain_data)
def test_nothing_changes_between_equal_values(data):
    assert keys.changes(data, data) == []


def test_changes_name_the_leaf_and_both_values():
    before = {"tolerance": {"cosine_similarity": 0.999, "rules": [{"match": "a"}]}, "gone": 1}
    after = {"tolerance": {"cosine_similarity": 0.9999, "rules": [{"match": "b"}]}}
    assert keys.changes(before, after) == [
        ("tolerance.cosine_similarity", 0.999, 0.9999),
        ("tolerance.rules[0].match", "a", "b"),
        ("gone", 1, None),
    ]


def test_file_digest_is_of_content_not_of_place(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        (folder / "deep").mkdir(parents=True)
        (folder / "deep" / "weights.bin").write_bytes(b"\x00\x01")
    assert keys.file_digest(one) == keys.file_digest(other)
    (other / "deep" / "weights.bin").write_bytes(b"\x00\x02")
    assert keys.file_digest(one) != keys.file_digest(other)


def test_files_that_have_not_changed_are_read_once(tmp_path, monkeypatch):
    weights, opened = tmp_path / "weights.bin", []
    weights.write_bytes(b"\x00\x01")
    monkeypatch.setattr(keys, "open_regular", lambda file: opened.append(file) or file.open("rb"))
    first = keys.file_digest(tmp_path)
    assert keys.file_digest(tmp_path) == first
    assert len(opened) == 2  # changed just now: a second change could have the same time
    monkeypatch.setattr(keys, "_SETTLED", -(10**18))
    assert [keys.file_digest(tmp_path) for _ in range(3)] == [first] * 3
    assert len(opened) == 3
    weights.write_bytes(b"\x00\x02")
    assert keys.file_digest(tmp_path) != first
    os.utime(weights, ns=(0, 0))
    weights.write_bytes(b"\x00\x01")
    os.utime(weights, ns=(0, 0))  # a time that somebody set: the change of the file's entry shows it
    assert keys.file_digest(tmp_path) == first


def test_file_digest_sees_a_renamed_file(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "x").write_bytes(b"1")
    (tmp_path / "b" / "y").write_bytes(b"1")
    assert keys.file_digest(tmp_path / "a") != keys.file_digest(tmp_path / "b")


def unreadable(kind, tmp_path):
    if kind == "FIFO":
        os.mkfifo(tmp_path / "w.bin")
        return tmp_path / "w.bin"
    if kind == "link to a log that never ends":
        (tmp_path / "w.bin").symlink_to("/proc/kmsg")
        return tmp_path / "w.bin"
    return {"device": "/dev/zero", "kernel": "/proc/kmsg", "whole machine": "/", "nothing": tmp_path / "absent"}[kind]


@pytest.mark.parametrize("kind", ["FIFO", "link to a log that never ends", "device", "kernel", "whole machine", "nothing"])
def test_what_is_no_file_of_weights_is_refused_at_once(kind, tmp_path):
    started = time.process_time()
    with pytest.raises(StoreError, match=r"is not a regular file|more than|No such file|Permission denied"):
        keys.file_digest(keys.Path(unreadable(kind, tmp_path)))
    assert time.process_time() - started < 5


def test_a_folder_is_read_once_though_links_lead_in_circles(tmp_path):
    (tmp_path / "w.bin").write_bytes(b"1")
    (tmp_path / "again").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with_links = keys.file_digest(tmp_path)
    (tmp_path / "again").unlink()
    (tmp_path / "pipe").unlink()
    assert keys.file_digest(tmp_path) == with_links


def test_a_folder_of_too_many_files_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(keys, "MOST_FILES", 2)
    for name in "ab":
        (tmp_path / name).write_bytes(b"")
    assert keys.file_digest(tmp_path)
    (tmp_path / "c").write_bytes(b"")
    with pytest.raises(StoreError, match="more than 2 files"):
        keys.file_digest(tmp_path)
