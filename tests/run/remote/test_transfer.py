"""Files to a store and back: verified, resumed, and without what the store has lost."""

import hashlib
import threading

import fsspec
import pytest

from precflow.errors import StoreError
from precflow.run.remote import transfer
from precflow.run.remote.transfer import RemoteFolder, describe_file, download_files, upload_files

SMALL, LARGE = b"small", bytes(range(256)) * 4096  # the second is more than two parts, with PART as below


@pytest.fixture(params=["s3", "memory", "file"])
def remote(request, tmp_path, monkeypatch):
    """A folder in a store of each kind; large files have parts of 5 MiB, the least that S3 takes, or of 300 kB."""
    if request.param == "s3":
        bucket = request.getfixturevalue("bucket")
        monkeypatch.setattr(transfer, "PART", 5 << 20)
        return RemoteFolder(bucket.open(), f"{bucket.bucket}/x", bucket.url)
    monkeypatch.setattr(transfer, "PART", 300_000)
    filesystem = fsspec.filesystem(request.param, skip_instance_cache=True)
    if request.param == "memory":
        monkeypatch.setattr(type(filesystem), "store", {})
        monkeypatch.setattr(type(filesystem), "pseudo_dirs", [""])
    return RemoteFolder(filesystem, str(tmp_path / "there") if request.param == "file" else "/there", request.param)


@pytest.fixture
def folder(tmp_path, remote):
    """A folder with an empty, a small and a large file, the names of which are Chinese or have spaces."""
    folder = tmp_path / "here"
    (folder / "一 只").mkdir(parents=True)
    (folder / "empty").write_bytes(b"")
    (folder / "一 只" / "small 猫.json").write_bytes(SMALL)
    (folder / "large").write_bytes(LARGE * 12 if remote.url.startswith("s3") else LARGE)
    return folder


NAMES = ["empty", "large", "一 只/small 猫.json"]


def names_below(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_what_comes_back_is_what_was_sent(remote, folder, tmp_path):
    told = []
    files = upload_files(folder, NAMES, remote, told.append)
    assert sum(told) == sum(file.bytes for file in files.values()) == sum((folder / name).stat().st_size for name in NAMES)
    told.clear()
    assert files["large"].etag.partition("-")[2] == ("3" if remote.url.startswith("s3") else "4")
    assert download_files(remote, files, tmp_path / "back", told.append) == {}
    assert sum(told) == sum(file.bytes for file in files.values())
    assert len(told) > len(files)  # a large file tells of its parts
    assert names_below(tmp_path / "back") == sorted(NAMES)
    assert all((tmp_path / "back" / name).read_bytes() == (folder / name).read_bytes() for name in NAMES)


def test_what_is_there_is_not_sent_again(remote, folder, monkeypatch):
    upload_files(folder, ["large"], remote, lambda _: None)
    sent = []
    put = transfer._put
    monkeypatch.setattr(transfer, "_put", lambda *words: sent.append(words[1].name) or put(*words))
    upload_files(folder, NAMES, remote, lambda _: None)
    assert sorted(sent) == ["empty", "small 猫.json"]


def test_other_bytes_of_the_same_size_are_sent_again(remote, folder, tmp_path):
    upload_files(folder, NAMES, remote, lambda _: None)
    (folder / "large").write_bytes((folder / "large").read_bytes()[::-1])
    files = upload_files(folder, ["large"], remote, lambda _: None)
    assert download_files(remote, files, tmp_path / "back", lambda _: None) == {}
    assert (tmp_path / "back" / "large").read_bytes() == (folder / "large").read_bytes()


def test_an_upload_that_arrives_changed_is_an_error(remote, folder, monkeypatch):
    monkeypatch.setattr(transfer, "_put", lambda filesystem, path, there, told: _put_changed(remote, there))
    with pytest.raises(StoreError, match="has other bytes than were sent"):
        upload_files(folder, ["一 只/small 猫.json"], remote, lambda _: None)


def _put_changed(remote, there):
    remote.filesystem.makedirs(there.rpartition("/")[0], exist_ok=True)
    remote.filesystem.pipe_file(there, SMALL[::-1])


def test_what_the_store_lost_or_changed_is_named_and_the_rest_comes(remote, folder, tmp_path):
    files = upload_files(folder, NAMES, remote, lambda _: None)
    remote.filesystem.rm_file(f"{remote.path}/large")
    remote.filesystem.pipe_file(f"{remote.path}/一 只/small 猫.json", SMALL[::-1])
    lost = download_files(remote, files, tmp_path / "back", lambda _: None)
    assert lost == {"large": "is missing", "一 只/small 猫.json": "has other bytes than were uploaded"}
    assert names_below(tmp_path / "back") == ["empty"]


def test_a_download_goes_on_where_it_was_cut(remote, folder, tmp_path, monkeypatch):
    files = upload_files(folder, ["large"], remote, lambda _: None)
    back = tmp_path / "back"
    back.mkdir()
    (back / "large.part").write_bytes((folder / "large").read_bytes()[: transfer.PART + 5])
    asked = []
    cat = remote.filesystem.cat_file
    monkeypatch.setattr(
        remote.filesystem, "cat_file", lambda path, start, end: asked.append(start) or cat(path, start=start, end=end)
    )
    assert download_files(remote, files, back, lambda _: None) == {}
    assert min(asked) == transfer.PART
    assert (back / "large").read_bytes() == (folder / "large").read_bytes()
    asked.clear()
    assert download_files(remote, files, back, lambda _: None) == {}
    assert asked == []


def test_checksums_of_a_large_file_are_those_of_its_parts(tmp_path, monkeypatch):
    (tmp_path / "x").write_bytes(LARGE)
    whole = describe_file(tmp_path / "x")
    assert (whole.etag, whole.sha256) == (hashlib.md5(LARGE).hexdigest(), hashlib.sha256(LARGE).hexdigest())
    half = len(LARGE) // 2
    monkeypatch.setattr(transfer, "PART", half)
    parts = b"".join(hashlib.md5(part).digest() for part in (LARGE[:half], LARGE[half:]))
    assert describe_file(tmp_path / "x").etag == f"{hashlib.md5(parts).hexdigest()}-2"


def test_small_files_travel_side_by_side(tmp_path, monkeypatch):
    """Each of four waits for the three others."""
    meeting = threading.Barrier(4, timeout=20)
    for number in range(4):
        (tmp_path / str(number)).write_bytes(b"x")
    filesystem = fsspec.filesystem("memory", skip_instance_cache=True)
    monkeypatch.setattr(type(filesystem), "store", {})
    put = transfer._put
    monkeypatch.setattr(transfer, "_put", lambda *words: meeting.wait() >= 0 and put(*words))
    assert len(upload_files(tmp_path, map(str, range(4)), RemoteFolder(filesystem, "/there", "memory"), lambda _: None)) == 4
