"""What lies in a store behind a URL: uploads are whole or invisible, are found by key, and never mixed up."""

import dataclasses
import importlib.util
import json
import threading
from pathlib import Path

import pytest

from precflow.agent.contract import CHECKSUM, checksum_of
from precflow.errors import ConfigError, MissingExtraError, StoreError
from precflow.run.remote import filesystem, transfer
from precflow.run.remote.filesystem import Address
from precflow.run.remote.sharing import Remote
from precflow.run.remote.uploads import MARKER, Uploads

_SPEC = importlib.util.spec_from_file_location("remote_fixtures", Path(__file__).with_name("conftest.py"))
fixtures = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(fixtures)
seal = fixtures.seal
SHARD = "rank0/step0/tensors-0.safetensors"


def address(bucket):
    return Address(bucket.url, endpoint=bucket.endpoint)


def remote(bucket, store, recipe="llm"):
    return Remote(address(bucket), recipe, store)


def nothing(done, total):
    """Progress that nobody watches."""


def change_marker(bucket, change):
    (path,) = [name for name in bucket.open().find(bucket.bucket) if name.endswith(MARKER)]
    marker = json.loads(bucket.open().cat_file(path))
    change(marker)
    marker[CHECKSUM] = checksum_of(marker)
    bucket.open().pipe_file(path, json.dumps(marker).encode())


def test_what_one_machine_uploads_another_finds_and_downloads(bucket, machine):
    sealed = seal(machine("here"))
    assert remote(bucket, machine("here")).share(sealed, nothing)
    there = remote(bucket, machine("there"))
    found = there.find(sealed.name, sealed.key)
    assert (found.seal, found.declared, bool(found.upload)) == (sealed.seal, {}, True)
    assert not found.folder.exists()
    told = []
    brought = there.bring(found, lambda done, total: told.append((done, total)))
    assert brought == dataclasses.replace(sealed, folder=machine("there").root / sealed.folder.name)
    assert told[-1][0] == told[-1][1]
    assert machine("there").find(sealed.name, sealed.key) == brought
    assert (brought.folder / SHARD).read_bytes() == b"x" * 100


def test_what_is_there_is_not_uploaded_again(shelf, machine, monkeypatch):
    sealed = seal(machine("here"))
    assert remote(shelf, machine("here")).share(sealed, nothing)
    monkeypatch.setattr(transfer, "_put", None)
    assert not remote(shelf, machine("here")).share(sealed, nothing)


def test_an_upload_that_was_cut_is_invisible_and_goes_on(bucket, machine, monkeypatch):
    sealed, here = seal(machine("here")), remote(bucket, machine("here"))
    put = transfer._put
    sent = []

    def cut(filesystem, path, there, told):
        if path.suffix == ".safetensors":
            raise ConnectionResetError("connection lost")
        sent.append(path.name)
        put(filesystem, path, there, told)

    monkeypatch.setattr(transfer, "_put", cut)
    with pytest.raises(StoreError, match="does not answer") as refused:
        here.share(sealed, nothing)
    assert "same command uploads it" in str(refused.value)
    assert here.find(sealed.name, sealed.key) is None
    (left,) = here.uploads.list_all()
    assert (left.seal, left.bytes > 0) == ({}, True)
    assert sealed.folder.is_dir()
    monkeypatch.setattr(transfer, "_put", lambda *words: sent.append(words[1].name) or put(*words))
    assert here.share(sealed, nothing)
    assert sorted(sent) == ["a.json", "sealed.json", "tensors-0.safetensors"]
    assert here.find(sealed.name, sealed.key) is not None


def test_two_machines_that_make_the_same_at_once_end_with_one_answer(bucket, machine):
    """Their dumps differ in how long they took; every reader takes the one that was finished first."""
    ones = [seal(machine(name), files={"a.json": name.encode(), SHARD: name.encode() * 9}) for name in ("one", "two")]
    start = threading.Barrier(2)

    def upload(name, sealed):
        start.wait()
        remote(bucket, machine(name)).uploads.upload(sealed, lambda _: None)

    threads = [threading.Thread(target=upload, args=pair) for pair in zip(("one", "two"), ones, strict=True)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    first = min(ones, key=lambda sealed: sealed.finished)
    for name in ("three", "four"):
        there = remote(bucket, machine(name))
        brought = there.bring(there.find(*[first.name, first.key]), nothing)
        uploaded = {upload.seal["seal"] for upload in there.uploads.list_all() if upload.seal}
        assert brought.seal == min(uploaded, key=lambda seal: next(one.finished for one in ones if one.seal == seal))
        assert (brought.folder / SHARD).read_bytes() == (brought.folder / "a.json").read_bytes() * 9


def test_a_killed_download_is_gone_on_with(shelf, machine, monkeypatch):
    sealed = seal(machine("here"))
    remote(shelf, machine("here")).share(sealed, nothing)
    there = remote(shelf, machine("there"))
    fetch, fetched = transfer._fetch, []

    def cut(source, name, file, path, told):
        if name == SHARD:
            raise KeyboardInterrupt
        fetched.append(name)
        return fetch(source, name, file, path, told)

    monkeypatch.setattr(transfer, "_fetch", cut)
    with pytest.raises(KeyboardInterrupt):
        there.bring(there.find(sealed.name, sealed.key), nothing)
    assert machine("there").find(sealed.name, sealed.key) is None
    monkeypatch.setattr(transfer, "_fetch", lambda *words: fetched.append(words[1]) or fetch(*words))
    assert there.bring(there.find(sealed.name, sealed.key), nothing).seal == sealed.seal
    assert sorted(fetched) == ["a.json", SHARD, "sealed.json"]


@pytest.mark.parametrize("harm", ["lost", "changed"])
def test_a_shard_that_the_store_lost_leaves_a_damaged_dump_with_a_seal_of_its_own(shelf, machine, harm):
    sealed = seal(machine("here"))
    remote(shelf, machine("here")).share(sealed, nothing)
    (path,) = [name for name in shelf.open().find(shelf.bucket) if name.endswith(".safetensors")]
    shelf.open().rm_file(path) if harm == "lost" else shelf.open().pipe_file(path, b"y" * 100)
    there = remote(shelf, machine("there"))
    brought = there.bring(there.find(sealed.name, sealed.key), nothing)
    assert brought.damaged
    assert brought.seal != sealed.seal
    assert SHARD in brought.note
    assert not (brought.folder / SHARD).exists()
    assert (brought.folder / "a.json").exists()
    assert machine("there").find(sealed.name, sealed.key) is None
    assert not there.share(brought, nothing)


def test_any_other_lost_file_is_an_error(shelf, machine):
    sealed = seal(machine("here"))
    remote(shelf, machine("here")).share(sealed, nothing)
    (path,) = [name for name in shelf.open().find(shelf.bucket) if name.endswith("a.json")]
    shelf.open().rm_file(path)
    there = remote(shelf, machine("there"))
    with pytest.raises(StoreError, match=r"a\.json of dump\.reference-aaaaaaaaaa-bbbbbb is missing"):
        there.bring(there.find(sealed.name, sealed.key), nothing)


def test_a_result_of_damaged_input_stays_here(shelf, machine):
    assert not remote(shelf, machine("here")).share(seal(machine("here"), damaged=True), nothing)
    assert shelf.files() == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda marker: marker.update(recipe="other"), "of recipe other"),
        (lambda marker: marker["seal"].update(key="c" * 10), "under the key dump.reference-aaaaaaaaaa-bbbbbb lies"),
        (lambda marker: marker.update(schema=99), "newer precflow"),
        (lambda marker: marker["files"].update({"../../x": [1, "0", "0"]}), "outside of its folder"),
        (lambda marker: marker.pop("files"), "is damaged"),
        (lambda marker: marker.update(seal=[]), "is damaged"),
        *(
            (lambda marker, size=size: marker["files"].update({SHARD: [size, "0", "0"]}), "is damaged")
            for size in (float("inf"), float("nan"), -1, 1.5, "7", 1 << 80, None)
        ),
        (lambda marker: marker.update(uploaded=float("inf")), "is damaged"),
        (lambda marker: marker["seal"].update(finished="never"), "is damaged"),
    ],
)
def test_something_else_under_the_key_is_refused(shelf, machine, change, said):
    sealed = seal(machine("here"))
    remote(shelf, machine("here")).share(sealed, nothing)
    change_marker(shelf, change)
    with pytest.raises(StoreError, match=said):
        remote(shelf, machine("there")).find(sealed.name, sealed.key)


def test_a_marker_that_is_no_json_is_refused(shelf, machine):
    sealed = seal(machine("here"))
    remote(shelf, machine("here")).share(sealed, nothing)
    (path,) = [name for name in shelf.open().find(shelf.bucket) if name.endswith(MARKER)]
    shelf.open().pipe_file(path, b"{")
    with pytest.raises(StoreError, match="is damaged"):
        remote(shelf, machine("there")).find(sealed.name, sealed.key)


def test_a_pin_stays_until_it_is_taken_away(shelf, machine):
    sealed, here = seal(machine("here")), remote(shelf, machine("here"))
    here.share(sealed, nothing)
    (upload,) = here.uploads.search("dump.reference")
    here.uploads.pin(upload, "nightly")
    assert [one.pinned for one in here.uploads.search("dump.reference")] == ["nightly"]
    here.uploads.unpin(upload)
    assert [one.pinned for one in here.uploads.search("dump.reference")] == [""]


def test_a_deleted_upload_leaves_nothing(bucket, machine):
    sealed, here = seal(machine("here")), remote(bucket, machine("here"))
    here.share(sealed, nothing)
    here.uploads.delete(here.uploads.find(sealed.name, sealed.key))
    assert bucket.files() == []


def test_what_somebody_else_has_put_beside_an_upload_stays(shelf, machine):
    sealed, here = seal(machine("here")), remote(shelf, machine("here"))
    here.share(sealed, nothing)
    upload = here.uploads.find(sealed.name, sealed.key)
    kept = here.uploads._filesystem
    kept.pipe_file(f"{upload.path}/mine.txt", b"mine")
    with pytest.raises(StoreError, match=r"mine\.txt belongs to no upload"):
        here.uploads.delete(upload)
    assert kept.cat_file(f"{upload.path}/mine.txt") == b"mine"
    assert here.uploads.find(sealed.name, sealed.key) == upload


def test_searching_takes_the_newest_first_and_only_the_name(bucket, machine):
    here = remote(bucket, machine("here"))
    for name, key in (
        ("dump.reference", "aaaaaaaaaa-1"),
        ("dump.reference", "bbbbbbbbbb-1"),
        ("dump.reference@2", "aaaaaaaaaa-2"),
    ):
        here.share(seal(machine("here"), name=name, key=key), nothing)
    assert [sealed.key for sealed in here.search("dump.reference")] == ["bbbbbbbbbb-1", "aaaaaaaaaa-1"]
    assert [sealed.key for sealed in here.search("dump.reference", "aaaa")] == ["aaaaaaaaaa-1"]
    assert here.search("dump.target") == []


def test_a_bucket_that_does_not_exist_is_named(bucket, machine):
    other = dataclasses.replace(bucket, bucket="nobody-made-this")
    with pytest.raises(StoreError, match="there is no bucket nobody-made-this"):
        remote(other, machine("here")).find("dump.reference", "a")


def test_a_service_that_is_not_there_does_not_answer(bucket, machine, monkeypatch):
    import s3fs

    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    monkeypatch.setattr(filesystem, "_ATTEMPTS", 1)
    nowhere = dataclasses.replace(bucket, endpoint="http://127.0.0.1:9")
    with pytest.raises(StoreError, match="does not answer") as refused:
        remote(nowhere, machine("here")).find("dump.reference", "a")
    assert "site.store_endpoint" in str(refused.value)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError("Access Denied"), "refuses"),
        (PermissionError("An error occurred (403) when calling the HeadObject operation: Forbidden"), "site.store_profile"),
        (TimeoutError("Read timeout on endpoint URL"), "does not answer"),
        (OSError(28, "No space left on device"), "is full"),
        (RuntimeError("An error occurred (507): InsufficientStorage"), "precflow prune"),
        (RuntimeError("An error occurred (XMinioStorageFull)"), "is full"),
        (type("NoCredentialsError", (Exception,), {})("Unable to locate credentials"), "no usable credentials"),
        (type("ProfileNotFound", (Exception,), {})("The config profile (x) could not be found"), "no usable credentials"),
        (RuntimeError("something of its own"), "failed: RuntimeError: something of its own"),
    ],
)
def test_what_a_store_says_is_explained_and_the_work_stays(shelf, machine, monkeypatch, error, said):
    def fail(*_):
        raise error

    sealed, here = seal(machine("here")), remote(shelf, machine("here"))
    monkeypatch.setattr(transfer, "_put", fail)
    with pytest.raises(StoreError) as refused:
        here.share(sealed, nothing)
    assert said in str(refused.value)
    assert "what is finished stays on this machine" in str(refused.value)
    assert machine("here").find(sealed.name, sealed.key) is not None


def test_a_secret_in_an_error_is_not_shown(shelf, machine, monkeypatch):
    def fail(*_):
        raise RuntimeError("https://AKIAX:sEcReTsEcReT@bucket/x?X-Amz-Signature=abcdef0123456789")

    monkeypatch.setattr(transfer, "_put", fail)
    with pytest.raises(StoreError) as refused:
        remote(shelf, machine("here")).share(seal(machine("here")), nothing)
    assert "sEcReT" not in str(refused.value)
    assert "abcdef0123456789" not in str(refused.value)


def test_a_missing_client_library_names_its_extra(monkeypatch):
    def refuse(*_, **__):
        raise ImportError("Install s3fs to access S3")

    import fsspec

    monkeypatch.setattr(fsspec.core, "url_to_fs", refuse)
    with pytest.raises(MissingExtraError, match=r"pip install 'precflow\[s3\]'"):
        Uploads(Address("s3://bucket/x"), "llm")


@pytest.mark.parametrize("url", ["s3://", "nonsense://x", "s3://me:secret@bucket/x", "s3://bucket/x?versionId=3"])
def test_a_url_that_is_no_place_is_refused(url):
    with pytest.raises(ConfigError) as refused:
        Uploads(Address(url), "llm")
    assert "secret" not in str(refused.value)
