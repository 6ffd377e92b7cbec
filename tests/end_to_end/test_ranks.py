"""Two processes that record themselves: one dump with both ranks, compared rank by rank.

Each is a fork with the variables that torchrun sets; torchrun itself is in ``tests/sides/test_ranks.py``.
"""

import json
import os
import shutil
import socket
from pathlib import Path

import pytest

from precflow.comparison.compare import compare
from precflow.dumps.formats import read_dump

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ranks")]  # both dumps are made once
SCRIPT = Path(__file__).parent / "workloads" / "ranks.py"


def find_free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, warm_server):
    """Return dumps of two processes: a reference, a target whose second rank is wrong, and targets with another reduction."""

    def record(name, factor, reduction="sum"):
        folder = tmp_path_factory.mktemp(name)
        together = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_free_port()), "WORLD_SIZE": "2"}
        with (folder.parent / f"{name}.log").open("wb+") as log:

            def start(rank):
                environment = {**together, "RANK": rank, "LOCAL_RANK": rank}
                words, out = [SCRIPT, folder, factor, reduction], log.fileno()
                return warm_server.popen(words, cwd=folder.parent, env=environment, out=out, err=out, module="")

            codes = [process.wait(120) for process in [start("0"), start("1")]]
            log.seek(0)
            assert codes == [0, 0], log.read().decode()
        return folder

    return [record("reference", "1.0"), record("target", "1.01"), *[record(name, "1.0", name) for name in ("maximum", "alone")]]


def titles(folder):
    result = json.loads((folder / "comparison" / "result.json").read_text(encoding="utf-8"))
    return [finding["title"] for finding in result["findings"]]


def test_one_dump_holds_both_ranks(recorded):
    dump = read_dump(recorded[0])
    assert dump.sealed
    assert dump.damage == ()
    assert dump.verify() == []
    assert {(call.rank, call.step) for call in dump.calls()} == {(rank, step) for rank in (0, 1) for step in (0, 1)}
    halves = [next(call for call in dump.calls(rank=rank, step=0) if call.operator == "linear") for rank in (0, 1)]
    assert halves[0].outputs[0].shape == halves[1].outputs[0].shape == (4, 32)
    assert halves[0].outputs[0].content != halves[1].outputs[0].content


def test_lines_of_each_rank_name_their_own_places(recorded):
    dump = read_dump(recorded[0])
    clones = [call for call in dump.calls() if call.operator == "clone"]
    assert {call.rank for call in clones} == {0}
    for operator in ("linear", "relu", "tanh"):
        sites = {call.site for call in dump.calls() if call.operator == operator and call.module != "narrow"}
        assert len(sites) == 1, operator
        assert "ranks.py" in sites.pop()


def test_what_a_collective_has_written_is_read_anew(recorded):
    """It writes in place, and no counter of versions tells."""
    dump = read_dump(recorded[0])
    for step in (0, 1):
        made, taken = (
            [next(call for call in dump.calls(rank=rank, step=step) if call.operator == operator) for rank in (0, 1)]
            for operator in ("mul", "tanh")
        )
        assert all(one.outputs[0].content != other.inputs[0].content for one, other in zip(made, taken, strict=True))
        assert taken[0].inputs[0].content == taken[1].inputs[0].content


def test_ranks_are_compared_with_their_own(recorded):
    measures = compare(*map(read_dump, recorded[:2]))
    assert {measure.join for measure in measures} == {"paired"}
    wrong = {measure.record for measure in measures if measure.operator == "mul" and not measure.equal}
    assert wrong == {"(model)/mul.0/forward.output.0@0.1", "(model)/mul.0/forward.output.0@1.1"}
    assert all(measure.equal for measure in measures if measure.operator in {"linear", "relu"})


def test_two_dumps_of_two_ranks_are_judged_without_a_recipe(precflow, recorded, tmp_path):
    ended = precflow("compare", *map(str, recorded[:2]), cwd=tmp_path)
    assert ended.code == 1, ended.err
    assert "multiplied by 1.01 on the target" in " ".join(ended.out.split())
    assert "The error starts on rank 1 alone, at (model) / mul (rank 1)" in titles(tmp_path)
    copied = shutil.copytree(recorded[0], tmp_path / "copied")
    same = precflow("compare", str(recorded[0]), str(copied), cwd=tmp_path)
    assert same.code == 0, same.out


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (2, "all_reduce computes the maximum of what the ranks give, and the sum on the reference"),
        # Each rank is alone; rank 1 comes first, because rank 0 has cloned its input before.
        (3, "all_reduce of the target runs among rank 1, on the reference among ranks 0, 1"),
    ],
)
def test_a_wrong_collective_is_told_from_a_wrong_computation(precflow, recorded, tmp_path, number, said):
    ended = precflow("compare", str(recorded[0]), str(recorded[number]), cwd=tmp_path)
    assert ended.code == 1, ended.err
    assert said in titles(tmp_path)


def test_a_rank_that_is_missing_is_not_passed_over(precflow, recorded, tmp_path):
    left = tmp_path / "left"
    left.mkdir()
    for path in recorded[0].rglob("*"):
        if "rank1" not in path.parts and path.is_file():
            (left / path.relative_to(recorded[0])).parent.mkdir(parents=True, exist_ok=True)
            (left / path.relative_to(recorded[0])).write_bytes(path.read_bytes())
    ended = precflow("compare", str(recorded[0]), str(left), cwd=tmp_path)
    assert ended.code == 3, ended.out
    assert "rank1/step0/records-0.jsonl" in " ".join(ended.out.split())
