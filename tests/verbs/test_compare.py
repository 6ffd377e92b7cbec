import csv
import json

import numpy as np
import pytest

from precflow import cli
from precflow.errors import DumpError, StoreError
from precflow.verbs import compare

X = np.random.default_rng(0).standard_normal((3, 7, 16)).astype(np.float32)


@pytest.fixture
def pair(build):
    """Return a function that writes two dumps whose second operator differs as a function says."""

    def write(change=lambda array: array, *, extra=False, **options):
        for side in ("reference", "target"):
            made = build(side, side=side)
            made.call("a", "linear", [X], {"0": X, "weight": X[0]})
            second = change(X.copy() * 2) if side == "target" else X * 2
            made.call("b", "mul", [second], [X], arguments={"other": "2" if side == "reference" else "3"})
            made.call("", "", [second], [X])
            if extra and side == "reference":
                made.call("c", "relu", [X], [X])
            for line in made.lines[0, 0][1:]:
                line["inputs"][0]["source"] = [0, "0"]
            made.header_changes.update(options if side == "target" else {})
            made.write()
        return ["reference", "target"]

    return write


def column(array):
    array[:, :, 5] *= 1.5
    return array


def test_equal_dumps_are_aligned(capsys, pair, tmp_path):
    assert compare.main(pair()) == 0
    assert "ALIGNED" in capsys.readouterr().out
    result = json.loads((tmp_path / "comparison" / "result.json").read_text())
    assert result["verdict"]["verdict"] == "aligned"


def test_rules_of_a_team_count(pair, tmp_path):
    folder = tmp_path / "team" / "rule"
    folder.mkdir(parents=True)
    text = "id: OUR001\ntitle: ours\nwhen: failing > 0\nwhy: w\nfix: f\nabout: run\nwhere: here\n"
    (folder / "OUR001_ours.yaml").write_text(text, encoding="utf-8")
    assert compare.main([*pair(column), "--config-dir", "team"]) == 1
    result = json.loads((tmp_path / "comparison" / "result.json").read_text())
    assert "OUR001" in [finding["rule"] for finding in result["findings"]]


def test_a_difference_is_misaligned_and_placed(capsys, pair, tmp_path):
    assert compare.main([*pair(column), "--output", "here/and/there"]) == 1
    shown = capsys.readouterr().out
    assert "MISALIGNED" in shown
    assert "starts at  b / mul" in shown
    assert "result      here/and/there/result.json" in shown
    rows = list(csv.DictReader((tmp_path / "here" / "and" / "there" / "result.csv").open()))
    assert [(row["record"], row["status"]) for row in rows] == [
        ("a/linear.0/forward.output.0", "pass"),
        ("b/mul.0/forward.output.0", "fail"),
        ("(model)/forward.output.0", "fail"),
    ]
    wanted = np.linalg.norm(column(X * 2) - X * 2) / np.linalg.norm(X * 2)
    assert float(rows[1]["relative_l2"]) == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("options", [{"extra": True}, {"weights": {"digest": "other", "entries": {}}}])
def test_what_is_missing_is_inconclusive(capsys, pair, options):
    assert compare.main(pair(**options)) == 3
    assert "INCONCLUSIVE" in capsys.readouterr().out


def test_an_unsealed_dump_is_compared_and_never_aligned(capsys, pair, tmp_path):
    pair()
    (tmp_path / "target" / "dump.json").unlink()
    assert compare.main(["reference", "target"]) == 3
    assert "never sealed" in capsys.readouterr().out


def test_json_has_the_outcome(capsys, pair):
    assert compare.main([*pair(column), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["verdict"], told["exit_code"], told["start"]) == ("misaligned", 1, "b / mul")
    assert told["counts"] == {"pass": 1, "fail": 2}


@pytest.mark.parametrize("options", [[], ["--json"], ["--record", "b"]])
def test_the_exit_code_is_that_of_the_comparison_whoever_reads_it(pair, behind_a_closed_pipe, options):
    assert behind_a_closed_pipe("compare", *pair(column), *options) == 1


def test_one_record_in_full(capsys, pair):
    assert compare.main([*pair(column), "--record", "b"]) == 1
    shown = capsys.readouterr().out
    for part in (
        "one position (index 5 of axis 2) carries 100 %",
        "argument other",
        "0: equal bits",
        "model.py:3 in forward",
        "unequal     21 elements",
        "axis 2",
        "worst",
        "relative_l2",
    ):
        assert part in shown


def test_one_record_as_json(capsys, pair):
    compare.main([*pair(column), "--record", "b / mul", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["detail"]["where"] == "one position (index 5 of axis 2) carries 100 %"
    assert told["judged"]["status"] == "fail"
    assert told["measure"]["arguments"] == {"other": ["2", "3"]}
    assert len(told["detail"]["worst_absolute"]) == 10


@pytest.mark.parametrize(("record", "code"), [("a", 0), ("a/linear.0/forward.input.weight", 0), ("b", 1), ("(model)", 1)])
def test_the_exit_code_is_that_of_the_record(pair, record, code):
    assert compare.main([*pair(column), "--record", record]) == code


def test_tensors_that_cannot_be_laid_side_by_side_are_shown_alone(capsys, pair):
    assert compare.main([*pair(lambda array: array[:, :3]), "--record", "b / mul"]) == 1
    shown = capsys.readouterr().out
    assert "the shapes differ: [3, 7, 16] on the reference, [3, 3, 16] on the target" in shown
    assert "shape" in shown


@pytest.mark.parametrize("change", [lambda array: array.astype(np.float16), lambda array: array * np.nan])
def test_other_types_and_nan(capsys, pair, change):
    assert compare.main([*pair(change), "--record", "b / mul"]) == 1
    assert "differs" in capsys.readouterr().out


def test_tensors_without_elements(capsys, build):
    for side in ("reference", "target"):
        build(side, side=side).call("a", "linear", [np.zeros((0, 3), np.float32)]).write()
    assert compare.main(["reference", "target", "--record", "a"]) in {0, 3}
    assert "[0, 3]" in capsys.readouterr().out


def test_what_was_not_stored_is_told(capsys, build):
    for side in ("reference", "target"):
        build(side, side=side).call("a", "linear", [X * (side == "target")], store=False).write()
    assert compare.main(["reference", "target", "--record", "a"]) == 3
    assert "the reference kept no tensor of it; the target kept no tensor of it" in capsys.readouterr().out


def test_a_record_of_one_side_is_named(pair):
    pair(extra=True)
    with pytest.raises(DumpError, match="only the reference has c/relu"):
        compare.main(["reference", "target", "--record", "c"])
    with pytest.raises(DumpError, match="only the target has c/relu"):
        compare.main(["target", "reference", "--record", "c/relu.0/forward.output.0"])
    with pytest.raises(DumpError, match="the nearest are"):
        compare.main(["reference", "target", "--record", "b/mull.0/forward.output.0"])


def test_a_folder_that_cannot_be_written(pair, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        compare.main([*pair(), "--output", "file/x"])


def test_a_missing_dump_is_exit_2(pair, capsys):
    pair()
    assert cli.main(["compare", "reference", "nowhere", "--json"]) == 2
    assert "no dump and no run at nowhere" in json.loads(capsys.readouterr().out)["error"]


def test_a_sparse_tensor_of_gigabytes_is_read_in_bounded_memory(build, tmp_path, grown):
    """A record whose shard is a hole of 256 MiB: memory stays below even one of both."""
    from precflow.agent.contract import HEADER_FILE
    from precflow.dumps.digest import content_id

    size = 1 << 26
    hole = tmp_path / "hole"
    with hole.open("wb") as file:
        file.truncate(4 * size)
    content = content_id(np.memmap(hole, np.float32, mode="r").view(np.ndarray))
    for side in ("reference", "target"):
        made = build(side, side=side).call("a", "linear", {"0": np.zeros(1, np.float32)})
        made.lines[0, 0][0]["outputs"][0].update(shape=[size], content=content)
        folder = made.write()
        index = json.dumps({content: {"dtype": "F32", "shape": [size], "data_offsets": [0, 4 * size]}}).encode()
        index += b" " * (-len(index) % 8)
        with (folder / "rank0" / "step0" / "tensors-0.safetensors").open("wb") as file:
            file.write(len(index).to_bytes(8, "little") + index)
            file.truncate(8 + len(index) + 4 * size)
        (folder / HEADER_FILE).unlink()
    assert compare.main(["reference", "target", "--record", "a", "--json"]) in {0, 3}
    assert grown() < 220_000_000


def test_what_has_to_be_the_same_is_said_on_the_command_line_and_on_the_screen(capsys, pair):
    other = {"weights": {"digest": "x", "entries": {"a.weight": {"content": "c", "dtype": "float32", "shape": [16]}}}}
    assert compare.main(pair(**other)) == 3
    assert "--same inputs compares them nevertheless" in " ".join(capsys.readouterr().out.split())
    assert compare.main([*pair(**other), "--same", "inputs"]) == 0
    with pytest.raises(SystemExit, match="2"):
        compare.main([*pair(), "--same", "seeds"])
