"""A side in one file: what comes out is what went in, and a file that was cut, altered or is newer is refused."""

import importlib.util
import io
import json
import os
import shutil
import tarfile
from pathlib import Path

import pytest

from precflow import cli
from precflow.agent.contract import CHECKSUM, checksum_of
from precflow.errors import PrecflowError, StoreError
from precflow.run import bundle
from precflow.run.bundle import open_bundle, read_header, write_bundle
from precflow.run.manifest import Manifest, RunEntry
from precflow.run.remote.filesystem import Address
from precflow.run.remote.uploads import Uploads
from precflow.run.runner import run
from precflow.run.store import Store

_SPEC = importlib.util.spec_from_file_location("remote_fixtures", Path(__file__).with_name("remote") / "conftest.py")
fixtures = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(fixtures)
SHARD = "rank0/step0/tensors-0.safetensors"


def nothing(done, total):
    """Progress that nobody watches."""


@pytest.fixture
def sealed(tmp_path):
    """An instance with a Chinese name of a file in it."""
    return fixtures.seal(Store(tmp_path / "here"), files={"一只 猫.json": b"{}", SHARD: bytes(range(256)) * 5000})


@pytest.fixture
def packed(tmp_path, sealed):
    """A bundle of one instance."""
    write_bundle(tmp_path / "x.tar", "llm", [sealed], nothing)
    return tmp_path / "x.tar"


def rewrite(path, change):
    """Write a bundle again with a changed header or other members."""
    with tarfile.open(path) as archive:
        members = [(member, archive.extractfile(member).read()) for member in archive]
    header = json.loads(members[0][1])
    members = change(header, members) or members
    header[CHECKSUM] = checksum_of({name: value for name, value in header.items() if name != CHECKSUM})
    with tarfile.open(path, "w") as archive:
        for member, data in members:
            written = json.dumps(header).encode() if member.name == bundle.HEADER_FILE else data
            member.size = len(written)
            archive.addfile(member, io.BytesIO(written))


def test_what_comes_out_is_what_went_in(packed, sealed, tmp_path):
    told = []
    ((taken, is_new),) = open_bundle(packed, tmp_path / "there", lambda done, total: told.append((done, total)))
    assert (taken.seal, taken.declared, taken.finished, is_new) == (sealed.seal, sealed.declared, sealed.finished, True)
    assert (taken.folder / SHARD).read_bytes() == (sealed.folder / SHARD).read_bytes()
    assert Store(tmp_path / "there").find(sealed.name, sealed.key) == taken
    assert told[-1][0] == told[-1][1]
    assert list((tmp_path / "there" / ".fetching").iterdir()) == []
    ((_, is_new),) = open_bundle(packed, tmp_path / "there", nothing)
    assert not is_new


def test_it_is_a_tar_file_with_the_header_first_and_nobodys_name(packed):
    with tarfile.open(packed) as archive:
        members = archive.getmembers()
    assert members[0].name == "bundle.json"
    assert {(member.uname, member.uid, member.mtime) for member in members} == {("", 0, 0)}
    assert read_header(packed).recipe == "llm"


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.01, 0.5, 0.99])
def test_a_file_that_was_cut_is_refused_and_leaves_nothing(packed, tmp_path, share):
    data = packed.read_bytes()
    packed.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(StoreError, match=r"was cut short|is no bundle") as refused:
        open_bundle(packed, tmp_path / "there", nothing)
    assert "copy the file again" in str(refused.value)
    assert not [path for path in (tmp_path / "there").rglob("*") if path.is_file()]


def test_every_changed_byte_is_found(packed, sealed, tmp_path):
    whole = packed.read_bytes()
    for place in range(0, len(whole) - 10240, 4999):  # behind the last file there is only padding
        packed.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            ((taken, _),) = open_bundle(packed, tmp_path / str(place), nothing)
        except StoreError:
            continue
        assert (taken.folder / SHARD).read_bytes() == (sealed.folder / SHARD).read_bytes()  # a byte that says nothing


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda header, _: header.update(schema=2, precflow="9.0"), r"newer precflow \(9\.0, format 2; this one reads 1\)"),
        (lambda header, _: header.update(format="other"), "its format is 'other'"),
        (lambda header, _: header.update(recipe="../../x"), "is no name of a recipe"),
        (lambda header, _: header.update(recipe="/x"), "is no name of a recipe"),
        (lambda header, _: header.update(recipe=""), "'' is no name of a recipe"),
        (lambda header, _: header.update(recipe=None), "None is no name of a recipe"),
        (lambda header, _: header.update(instances=[]), "it names no stage"),
        (lambda header, _: header.update(instances=header["instances"] * 2), "it names a stage twice"),
        (lambda header, _: header["instances"][0].update(instance="../x"), "is no dump and no noise floor"),
        (lambda header, _: header["instances"][0].update(instance="judge-aaaaaaaaaa"), "is no dump and no noise floor"),
        (lambda header, _: header["instances"][0].update(instance="dump.target-c"), "is not in its header"),
        (lambda header, _: header["instances"][0].update(finished=float("inf")), "Infinity where a number is expected"),
        (lambda header, _: header["instances"][0].update(files={SHARD: [7, ""]}), "has no seal"),
        (lambda header, _: header["instances"][0]["files"].update({"given.json": [2, ""]}), "is elsewhere"),
        (lambda header, _: header["instances"][0]["files"].update({"a/../../x": [2, ""]}), "outside of its folder"),
        (lambda header, _: header["instances"][0]["files"].update({"a//x": [2, ""]}), "outside of its folder"),
        *(
            (lambda header, _, size=size: header["instances"][0]["files"].update({SHARD: [size, ""]}), said)
            for size, said in (
                (float("inf"), "Infinity where a number is expected"),
                (-1, "expected a whole number"),
                (1.5, "expected a whole number"),
                ("7", "expected a whole number"),
                (1 << 80, "expected a whole number"),
                (1 << 40, "it has .* bytes, and its header names 1099511"),
                (7, "has 1280000 bytes, its header says 7"),
            )
        ),
        (lambda header, _: header.update(instances=[1]), "was altered"),
        (lambda header, members: members[:-1], "was cut short: .* is missing"),
        (lambda header, members: members[1:], "expected bundle.json first"),
        (lambda header, members: [*members, (tarfile.TarInfo("../../etc/x"), b"x")], "is not in its header"),
        (lambda header, members: [*members, members[-1]], "is not in its header"),
        (lambda header, members: [*members, members[0]], "bundle.json is not in its header"),
    ],
)
def test_a_bundle_that_is_not_what_was_written_is_refused(packed, tmp_path, change, said):
    rewrite(packed, change)
    with pytest.raises(StoreError, match=said):
        open_bundle(packed, tmp_path / "there", nothing)
    assert not list((tmp_path / "there").glob("dump*"))


@pytest.mark.parametrize(
    "kind", ["SYMTYPE", "LNKTYPE", "CHRTYPE", "BLKTYPE", "FIFOTYPE", "DIRTYPE", "GNUTYPE_SPARSE", "GNUTYPE_LONGNAME", "XGLTYPE"]
)
def test_a_member_that_is_no_plain_file_is_refused(packed, tmp_path, kind):
    def change(_, members):
        member = members[-1][0]
        member.type, member.linkname = getattr(tarfile, kind), "/etc/passwd"
        return [*members[:-1], (member, b"")]

    rewrite(packed, change)
    with pytest.raises(StoreError, match="is no plain file"):
        open_bundle(packed, tmp_path / "there", nothing)
    assert not list((tmp_path / "there").glob("dump*"))


HUGE = 1 << 40


@pytest.mark.parametrize("declared", [512, HUGE])
@pytest.mark.parametrize(
    "headers",
    [
        {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(HUGE)},
        {"GNU.sparse.map": "0,1", "GNU.sparse.size": str(HUGE)},
        {"size": str(HUGE)},
        {"size": "-5"},
        {"size": "many"},
        {"comment": "x" * 100_000},
    ],
)
def test_a_member_that_says_it_is_larger_than_it_is_writes_nothing(packed, tmp_path, headers, declared):
    """A sparse one of a few kilobytes could fill a disk."""

    def change(header, members):
        header["instances"][0]["files"] = {SHARD: [declared, ""], "sealed.json": [0, ""]}
        (member, data) = next(pair for pair in members if pair[0].name.endswith(SHARD))
        member.pax_headers = headers
        return [members[0], (member, data[:512])]

    rewrite(packed, change)
    with pytest.raises(StoreError, match=r"was cut short|was altered|is no bundle"):
        open_bundle(packed, tmp_path / "there", nothing)
    assert not [path for path in (tmp_path / "there").rglob("*") if path.is_file()]


def test_a_bundle_for_which_the_disk_has_no_room_is_refused_before_it_writes(packed, tmp_path, monkeypatch):
    monkeypatch.setattr(bundle.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 1000))
    with pytest.raises(StoreError, match=r"the bundle has 1 MB, and the disk of .*there has 0 MB free"):
        open_bundle(packed, tmp_path / "there", nothing)
    assert list((tmp_path / "there" / ".fetching").iterdir()) == []


def test_a_bundle_that_never_ends_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "x.tar")
    with pytest.raises(StoreError, match="it is not a regular file but a named pipe"):
        read_header(tmp_path / "x.tar")


@pytest.mark.parametrize("content", [b"", b"hello", b"\x1f\x8b" + b"x" * 600])
def test_any_other_file_is_no_bundle(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(StoreError, match=r"no bundle|cut short"):
        read_header(tmp_path / "x")


def test_what_cannot_be_done_is_said(packed, sealed, tmp_path):
    with pytest.raises(StoreError, match="exists already"):
        write_bundle(packed, "llm", [sealed], nothing)
    with pytest.raises(StoreError, match="there is no file"):
        read_header(tmp_path / "nothing")
    (sealed.folder / SHARD).unlink()
    with pytest.raises(StoreError, match="cannot read"):
        write_bundle(tmp_path / "y.tar", "llm", [sealed], nothing)
    assert list(tmp_path.glob("y.tar*")) == []


def test_a_dump_of_the_users_own_is_not_bundled(composed, tmp_path):
    run(composed("stages=[dump]"), command="")
    with pytest.raises(StoreError, match="folder of your own"):
        bundle.choose_instances("compare_dumps:target")
    with pytest.raises(StoreError, match=r"no dump of golden; it has dump\.reference, dump\.target"):
        bundle.choose_instances("compare_dumps:golden")
    with pytest.raises(PrecflowError, match="no run folder at nowhere"):
        bundle.choose_instances("nowhere:target")


def test_a_run_travels_by_its_name(stage_fixtures, tmp_path, monkeypatch, capsys):
    """Reference with its noise floor; the target of the same run stays."""
    monkeypatch.chdir(tmp_path)
    store = Store(tmp_path / "runs" / "llm" / "store")
    dump = stage_fixtures.builder.DumpBuilder(tmp_path / "made", side="reference")
    dump.call("fc1", "linear", [stage_fixtures.HIDDEN], [stage_fixtures.HIDDEN])
    dump.header_changes = {"recipe": "llm"}
    dump.write()
    files = {
        path.relative_to(tmp_path / "made").as_posix(): path.read_bytes()
        for path in (tmp_path / "made").rglob("*")
        if path.is_file()
    }
    made = [
        fixtures.seal(store, name=name, files=files) for name in ("dump.reference", "dump.target", "noise.reference", "judge")
    ]
    manifest = Manifest(tmp_path / "runs" / "llm")
    entry = manifest.begin("2026-11-22T10:00+00:00", "precflow +recipe=llm")
    manifest.update(RunEntry(**{**vars(entry), "instances": {sealed.name: sealed.key for sealed in made}, "exit_code": 0}))
    assert cli.main(["bundle", "llm:reference"]) == 0
    said = capsys.readouterr()
    assert said.out == "llm-reference.bundle.tar\n"
    assert "precflow unbundle llm-reference.bundle.tar" in said.err
    assert cli.main(["unbundle", "llm-reference.bundle.tar", "--runs", "elsewhere"]) == 0
    said = capsys.readouterr()
    assert "verified, in elsewhere/llm/store" in said.out
    assert "precflow +recipe=llm sides=[target]" in said.out
    names = {
        path.name.partition("-")[0] for path in (tmp_path / "elsewhere" / "llm" / "store").iterdir() if path.name[0] != "."
    }
    assert names == {"dump.reference", "noise.reference"}
    there = (tmp_path / "there").as_uri()
    assert cli.main(["unbundle", "llm-reference.bundle.tar", "--runs", "third", "--store", there]) == 0
    assert f"uploaded to {there}" in capsys.readouterr().out
    (upload,) = Uploads(Address(there), "llm").search("dump.reference")
    assert upload.key == Store(Path("third/llm/store")).list_sealed("dump.reference")[0].key
    assert cli.main(["unbundle", "llm-reference.bundle.tar", "--json", "--runs", "elsewhere"]) == 0
    assert [row["new"] for row in json.loads(capsys.readouterr().out)["instances"]] == [False, False]
