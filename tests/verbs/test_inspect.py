import io
import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from precflow import cli
from precflow.errors import DumpError
from precflow.verbs import inspect

X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 12)


@pytest.fixture
def folder(build):
    made = build()
    made.call("encoder.0", "softmax", [X], [X * 2], arguments={"dim": "-1"})
    made.call("encoder.0", "", [X], [X * 2])
    made.call("encoder.0", "view", [X], [X], movement=True, store=False)
    lines = made.lines[0, 0]
    lines[1]["outputs"][0]["source"] = lines[2]["inputs"][0]["source"] = [0, "0"]
    return str(made.write())


def said(capsys, *arguments, code=0):
    assert inspect.main(arguments) == code
    return capsys.readouterr().out


def test_a_dump_says_what_it_holds(capsys, folder):
    shown = said(capsys, folder)
    assert "reference · cpu float32 · CPU · recipe test · agent 0.1.0" in shown
    assert "sealed      yes, as e0" in shown
    assert "3 outputs and 3 inputs of 3 calls (2 api, 1 module)" in shown
    assert "kept as     tensor 4 · digest 2" in shown
    assert "none seen; --verify reads every byte" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_damaged_dump_is_code_2_whoever_reads_it(folder, behind_a_closed_pipe, options):
    shard = next(Path(folder).rglob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    assert behind_a_closed_pipe("inspect", folder, "--verify", *options) == 2


def test_every_byte_can_be_read(capsys, folder, tmp_path):
    assert "none: every byte was read" in said(capsys, folder, "--verify")
    shard = tmp_path / "dump" / "rank0" / "step0" / "tensors-0.safetensors"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    assert "none seen" in said(capsys, folder)
    assert "damage" in said(capsys, folder, "--verify", code=2)
    assert json.loads(said(capsys, folder, "--verify", "--json", code=2))["damage"]
    shown = said(capsys, folder, "encoder.0/softmax.0/forward.input.0") + said(capsys, folder, "encoder.0")
    assert "problem     its tensor cannot be read" in shown


def test_an_unsealed_dump_is_complete_up_to_a_step(capsys, build):
    made = build()
    for step in range(3):
        made.call("a", "linear", [X], step=step)
    folder = made.write(sealed=False, steps=True)
    (folder / "rank0" / "step2" / "step.json").unlink()
    shown = said(capsys, str(folder))
    assert "NO: its writer was stopped; rank 0 is complete up to step 1" in shown
    assert "step2 was not finished" in shown
    plain = json.loads(said(capsys, str(folder), "--json"))
    assert (plain["sealed"], plain["complete_until"], plain["unfinished"]) == (False, {"0": 1}, [[0, 2]])


def test_records_are_listed_by_pattern(capsys, folder):
    shown = said(capsys, folder, "--match", "softmax")
    assert "encoder.0/softmax.0/forward.output.0   float32   [2, 12]   tensor" in shown
    assert "2 records that match softmax" in shown
    assert "1 of 6 records that match *" in said(capsys, folder, "*", "--limit", "1")
    assert len(json.loads(said(capsys, folder, "--match", "*", "--limit", "0", "--json"))["records"]) == 6


def test_no_match_names_the_nearest(folder):
    with pytest.raises(DumpError, match=r"encoder\.0/softmax"):
        inspect.main([folder, "--match", "encoder.0/sofmax.0"])


def test_one_record_in_full(capsys, folder):
    shown = said(capsys, folder, "encoder.0/softmax.0")
    for part in ("24 elements, 96 bytes", "the whole tensor", "dim = -1", "model.py:3 in forward", "run.py:1", "ordinary 24"):
        assert part in shown
    assert "min / max   -1 / 1" in shown
    assert "users       encoder.0/view.0/forward.input.0" in shown
    assert "source" not in shown
    assert "source      encoder.0/softmax.0/forward.output.0" in said(capsys, folder, "encoder.0")


def test_a_tensor_that_was_not_stored_says_what_there_is(capsys, folder, build):
    shown = said(capsys, folder, "encoder.0 / view")
    assert "not stored; movement is never stored, what it moved is; there is its content id only" in shown
    made = build("counted").call("a", "linear", [X], store=False)
    made.lines[0, 0][0]["outputs"][0]["statistics"] = [-1.0, 1.0, 0.0, 9.0, 0, 1, 0, 2, 3, 4]
    shown = said(capsys, str(made.write()), "a / linear")
    assert "there is statistics: what was counted" in shown
    assert "zero 3 · mask fill 2 · NaN 0 · Inf 1 · saturated 4" in shown
    assert "norm        3" in shown


def test_a_sketch_is_told(capsys, build):
    made = build().call("a", "linear", [X], store=False)
    content = made.lines[0, 0][0]["outputs"][0]["content"]
    made.attach(f"{content}.sketch", np.zeros((1, 509), np.float32))
    assert "there is a sketch of 509 numbers, and its content id only" in said(capsys, str(made.write()), "a / linear")


@pytest.mark.parametrize(
    "array", [np.zeros((0, 3), np.float32), np.array(3, np.int64), np.array([True]), np.zeros(3, ml_dtypes.bfloat16)]
)
def test_every_kind_of_tensor(capsys, build, array):
    folder = str(build().call("a", "linear", [array]).write())
    assert array.dtype.name in said(capsys, folder, "a / linear")
    plain = json.loads(said(capsys, folder, "a / linear", "--json"))
    assert plain["shape"] == list(array.shape)
    assert plain["tensor"]["extent"]["elements"] == array.size


def test_names_cannot_move_the_cursor(capsys, build):
    folder = str(build().call("a\x1b[31m层" + "x" * 300, "linear", [X]).write())
    assert "\x1b" not in said(capsys, folder, "--match", "*")
    assert "\x1b" not in said(capsys, folder, "*output*") + said(capsys, folder)


def test_colour_only_for_a_terminal_that_wants_it(folder, monkeypatch):
    class Terminal(io.StringIO):
        encoding = "utf-8"

        def isatty(self):
            return True

    for variables, coloured in (({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
        with monkeypatch.context() as patch:
            for name in ("NO_COLOR", "TERM"):
                patch.delenv(name, raising=False)
            for name, value in variables.items():
                patch.setenv(name, value)
            patch.setattr("sys.stdout", Terminal())
            inspect.main([folder])
            assert ("\x1b[" in inspect.sys.stdout.getvalue()) == coloured


def test_a_terminal_without_unicode_gets_ascii(folder, monkeypatch):
    class Old(io.StringIO):
        encoding = "ascii"

    monkeypatch.setattr("sys.stdout", Old())
    inspect.main([folder, "encoder.0"])
    assert inspect.sys.stdout.getvalue().isascii()


@pytest.mark.parametrize("arguments", [["nowhere"], ["nowhere", "--json"]])
def test_no_dump_is_exit_2(arguments, capsys):
    assert cli.main(["inspect", *arguments]) == 2
    assert "no dump and no run at nowhere" in capsys.readouterr().err
