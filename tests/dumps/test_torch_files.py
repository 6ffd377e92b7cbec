"""Files of ``torch.save`` are read as ``zipfile`` and torch read them, whole or damaged."""

import zipfile

import numpy as np
import pytest
import torch

from precflow.dumps import torch_files
from precflow.dumps.torch_files import check_saved, read_saved
from precflow.errors import DumpError


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "x.pt"
    torch.save({"a": torch.arange(6.0).reshape(2, 3), "b": [torch.tensor([1, 2], dtype=torch.int16)]}, path)
    return path


def outcome(path):
    """Return the values of a file and whether its checksums hold, or the error."""
    try:
        saved = read_saved(path)
        values = {name: (tensor.dtype, tensor.read().tolist()) for name, tensor in saved.tensors.items()}
        check_saved(path, saved.entries)
    except DumpError as error:
        return error.message
    return values


def test_a_plain_archive_is_read_without_zipfile(file, monkeypatch):
    monkeypatch.setattr(zipfile, "ZipFile", None)
    assert outcome(file) == {"a": ("float32", [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]), "b.0": ("int16", [1, 2])}


def test_a_large_tensor_is_mapped_and_checked(tmp_path):
    values = torch.arange(100_000, dtype=torch.float32)
    torch.save(values, path := tmp_path / "large.pt")
    saved = read_saved(path)
    assert np.array_equal(saved.tensors[""].read(), values.numpy())
    check_saved(path, saved.entries)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DumpError, match="damaged"):
        check_saved(path, saved.entries)


def test_damaged_files_end_as_zipfile_would_end_them(file, monkeypatch):
    whole = file.read_bytes()
    damaged = [whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :] for place in range(0, len(whole), 3)]
    damaged += [whole[:size] for size in range(0, len(whole), 37)] + [b"#!" + whole, whole + b"\0"]
    seen = []
    for reads in (torch_files.list_entries, lambda _: None):
        monkeypatch.setattr(torch_files, "list_entries", reads)
        seen.append([])
        for data in damaged:
            file.write_bytes(data)
            seen[-1].append(outcome(file))
    good = outcome_of(whole, file)
    for ours, theirs in zip(*seen, strict=True):
        # A byte that nothing depends on, such as a date, may be refused by either; values are those that were written.
        assert ours == theirs or ({type(ours), type(theirs)} == {str, dict} and good in (ours, theirs))


def outcome_of(data, file):
    file.write_bytes(data)
    return outcome(file)


@pytest.mark.parametrize("change", ["compressed", "comment", "in front"])
def test_other_forms_of_an_archive_are_left_to_zipfile(file, change):
    whole = file.read_bytes()
    with zipfile.ZipFile(file) as archive:
        parts = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    before = outcome(file)
    if change == "in front":
        file.write_bytes(b"#!/bin/sh\n" + whole)
    else:
        with zipfile.ZipFile(file, "w") as archive:
            archive.comment = b"of mine" if change == "comment" else b""
            for name, data in parts.items():
                packed = change == "compressed" and name.endswith("data.pkl")
                archive.writestr(name, data, zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED)
    assert torch_files.list_entries(file.read_bytes()) is None
    assert read_saved(file).entries is None
    if change != "in front":  # torch's places of storages count from the first byte
        assert outcome(file) == before
