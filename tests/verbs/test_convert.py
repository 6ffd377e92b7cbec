import json

import ml_dtypes
import numpy as np
import pytest

from precflow.errors import ConfigError, DumpError, StoreError
from precflow.verbs import convert

X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 12)


@pytest.fixture
def folder(build):
    made = build()
    made.call("encoder.0", "linear", [X], [X * 2]).call("encoder.1", "linear", [X.astype(ml_dtypes.bfloat16)])
    made.call("encoder.1", "view", [X], movement=True, store=False)
    return str(made.write())


def test_one_record_becomes_a_file(capsys, folder, tmp_path):
    assert convert.main([folder, "encoder.0/linear.0", "--to", "npy"]) == 0
    assert capsys.readouterr().out == " encoder.0__linear.0__forward.output.0.npy   float32 [2, 12]\n"
    np.testing.assert_array_equal(np.load(tmp_path / "encoder.0__linear.0__forward.output.0.npy"), X)


@pytest.mark.parametrize(
    ("words", "file"),
    [
        (["--output", "x"], "x.npy"),
        (["--output", "x.v1"], "x.v1.npy"),
        (["--output", "y.txt"], "y.txt"),
        (["--to", "txt", "--output", "z.npy"], "z.npy.txt"),
    ],
)
def test_a_file_ends_in_what_it_is(capsys, folder, tmp_path, words, file):
    assert convert.main([folder, "encoder.0/linear.0", *words]) == 0
    assert capsys.readouterr().out.startswith(f" {file} ")
    assert (tmp_path / file).is_file()


def test_what_is_widened_is_told(capsys, folder, tmp_path):
    convert.main([folder, "encoder.1/linear.0", "--to", "npy", "--output", "x.npy"])
    assert "bfloat16 widened to float32, exactly" in capsys.readouterr().out
    convert.main([folder, "encoder.1/linear.0", "--to", "npy", "--output", "raw.npy", "--raw"])
    assert np.load(tmp_path / "raw.npy").dtype == np.uint16


def test_text_has_a_row_a_line(folder, tmp_path):
    convert.main([folder, "encoder.0/linear.0", "--to", "txt", "--output", str(tmp_path)])
    text = (tmp_path / "encoder.0__linear.0__forward.output.0.txt").read_text()
    assert text.startswith("# float32 [2, 12]\n-1.0 -0.9130435 ")
    np.testing.assert_array_equal(np.loadtxt(text.splitlines(), dtype=np.float32), X)


def test_many_records_become_a_folder(capsys, folder, tmp_path):
    assert convert.main([folder, "*", "--to", "npy"]) == 0
    told = capsys.readouterr()
    assert "3 files in tensors/" in told.out
    assert "1 record that match have no tensor" in told.err
    rows = json.loads((tmp_path / "tensors" / "records.json").read_text())
    assert {row["record"]: np.load(tmp_path / "tensors" / row["file"]).shape for row in rows} == {
        "encoder.0/linear.0/forward.input.0": (2, 12),
        "encoder.0/linear.0/forward.output.0": (2, 12),
        "encoder.1/linear.0/forward.output.0": (2, 12),
    }


def test_json_says_what_was_written(capsys, folder):
    convert.main([folder, "*.output.*", "--to", "txt", "--output", "t", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert (len(told["written"]), told["not_stored"]) == (2, 1)
    assert told["written"][0]["file"] == "t/encoder.0__linear.0__forward.output.0.txt"


def test_nothing_is_written_over_without_force(folder, tmp_path):
    arguments = [folder, "*.output.*", "--to", "npy"]
    convert.main(arguments)
    (tmp_path / "tensors" / "encoder.0__linear.0__forward.output.0.npy").unlink()
    with pytest.raises(StoreError, match=r"encoder\.1__.* exists"):
        convert.main(arguments)
    assert not (tmp_path / "tensors" / "encoder.0__linear.0__forward.output.0.npy").exists()
    assert convert.main([*arguments, "--force"]) == 0


def test_names_of_any_length_and_script_become_files(build, tmp_path):
    made = build()
    for name in ("层" * 200, "层" * 200 + "x", "a b", "A b", "con", "..", "x\x00y"):
        made.call(name, "linear", [X])
    convert.main([str(made.write()), "*", "--to", "npy"])
    assert len(list((tmp_path / "tensors").glob("*.npy"))) == 7


def test_damage_is_told_and_the_rest_is_written(capsys, folder, tmp_path):
    shard = tmp_path / "dump" / "rank0" / "step0" / "tensors-0.safetensors"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    assert convert.main([folder, "*", "--to", "npy"]) == 2
    told = capsys.readouterr().out
    assert "cannot be read" in told
    assert len(list((tmp_path / "tensors").glob("*.npy"))) == 2


REFUSED = [
    (["encoder.0", "--to", "nyp"], ConfigError, r"Did you mean  npy \?"),
    (["encoder.0/linear.0", "--to", "txt", "--raw"], ConfigError, "--raw writes bits into .npy"),
    (["encoder.1 / view", "--to", "npy"], DumpError, "was not stored: it only moves values"),
    (["*view*", "--to", "npy"], DumpError, "was not stored"),
    (["nothing*", "--to", "npy"], DumpError, "no record matches nothing"),
    (["encoder.2/linear.0", "--to", "npy"], DumpError, "the nearest are"),
    (["encoder.0/linear.0", "--to", "npy", "--output", "/proc/x/y.npy"], StoreError, "cannot be made"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), REFUSED)
def test_what_cannot_be_done_says_why(folder, arguments, error, message):
    with pytest.raises(error, match=message):
        convert.main([folder, *arguments])


def test_a_disk_without_room_is_told_before_anything_is_written(folder, monkeypatch, tmp_path):
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10}))
    with pytest.raises(StoreError, match="MB are needed"):
        convert.main([folder, "*", "--to", "npy"])
    assert list((tmp_path / "tensors").iterdir()) == []
