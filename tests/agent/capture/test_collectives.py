"""Collectives as records: what each rank gave and got, from Python and from C++, with the same bits as without capture."""

import json
import os
import socket
from pathlib import Path

import pytest

from precflow.agent.capture.collectives import NAMES
from precflow.dumps.formats import read_dump

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("collectives")]  # ranks of each part are started once for all tests
SCRIPT = Path(__file__).parent / "collecting.py"
RANKS = (0, 1)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, warm_server):
    """Return a function that runs parts of the script on two ranks and returns their folder."""

    def run(*parts):
        folder = tmp_path_factory.mktemp("ranks")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        together = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
        with (folder / "log").open("wb+") as log:

            def start(rank):
                environment = {**together, "RANK": str(rank), "LOCAL_RANK": str(rank)}
                words, out = [SCRIPT, folder, *parts], log.fileno()
                return warm_server.popen(words, cwd=folder, env=environment, out=out, err=out, module="")

            codes = [process.wait(120) for process in [start(rank) for rank in RANKS]]
            log.seek(0)
            assert codes == [0, 0], log.read().decode()
        return folder

    return run


@pytest.fixture(scope="module")
def called(recorded):
    return recorded("calls", "functional", "hasty", "narrow")


@pytest.fixture(scope="module")
def trained(recorded):
    return recorded("data_parallel", "sharded")


def collectives(folder, part, rank, step=0, phase="forward"):
    calls = read_dump(folder / part).calls(step=step, rank=rank)
    return [call for call in calls if call.operator in NAMES.values() and call.phase == phase]


def facts(folder, part, rank):
    return json.loads((folder / f"{part}-{rank}.json").read_text())


@pytest.mark.parametrize("rank", RANKS)
def test_each_is_a_record_with_its_ranks_and_its_reduction(called, rank):
    seen = [(call.operator, call.arguments) for call in collectives(called, "calls", rank)]
    group = {"group": "[0, 1]"}
    other = "source" if rank else "destination"
    assert seen == [
        ("all_reduce", {**group, "reduction": "sum"}),
        ("all_reduce", {**group, "reduction": "max"}),
        ("all_reduce", {**group, "reduction": "sum"}),
        ("all_gather", group),
        ("reduce_scatter_tensor", {**group, "reduction": "sum"}),
        ("broadcast", {**group, "root": "1"}),
        ("recv" if rank else "send", {**group, other: str(1 - rank)}),
        ("all_to_all_single", group),
        ("reduce", {**group, "reduction": "sum", "root": "1"}),
        ("send", {**group, "destination": str(1 - rank)}),
        ("recv", {**group, "source": str(1 - rank)}),
    ]


def test_inputs_are_from_before_it_and_outputs_from_after_it(called):
    first = [collectives(called, "calls", rank)[0] for rank in RANKS]
    given = [call.inputs[0].content for call in first]
    got = [call.outputs[0].content for call in first]
    assert given[0] != given[1]
    assert got[0] == got[1]
    assert got[0] not in given


def test_what_one_rank_sends_the_other_receives(called):
    sent, received = collectives(called, "calls", 0)[6], collectives(called, "calls", 1)[6]
    assert (sent.operator, received.operator) == ("send", "recv")
    assert sent.inputs[0].content == received.outputs[0].content


def test_data_flows_through_them(called):
    calls = {call.order: call for call in read_dump(called / "calls").calls(step=0, rank=0)}
    readers = {call.operator: call for call in calls.values()}
    for operator, source in (("tanh", "all_reduce"), ("relu", "reduce_scatter_tensor"), ("exp", "all_to_all_single")):
        order, _ = readers[operator].inputs[0].source
        assert calls[order].operator == source


def test_an_asynchronous_one_is_written_where_its_result_is_read_first(called):
    calls = read_dump(called / "calls").calls(step=0, rank=0)
    names = [call.operator for call in calls]
    add = next(call for call in calls if call.operator == "add")
    assert names[add.order - 1] == "all_reduce"
    assert add.inputs[0].source == (add.order - 1, "0")


@pytest.mark.parametrize("part", ["calls", "functional"])
@pytest.mark.parametrize("rank", RANKS)
def test_results_have_the_same_bits_as_without_capture(called, part, rank):
    assert facts(called, part, rank)["same"] == [True, True]


def test_the_begin_of_each_is_announced_with_its_number_in_the_group(called):
    announced = facts(called, "calls", 1)["announced"]
    assert announced[0] == ["all_reduce", "0,1", 0, "step 0, in (model)"]
    assert [number for _, group, number, _ in announced if group == "0,1"] == list(range(16))
    assert [number for _, group, number, _ in announced if group == "0>1"] == list(range(4))


def test_a_functional_one_is_one_record(called):
    (call,) = collectives(called, "functional", 0)
    assert call.arguments == {"group": "[0, 1]", "reduction": "sum"}
    (other,) = collectives(called, "functional", 1)
    assert call.outputs[0].content == other.outputs[0].content != call.inputs[0].content


def test_a_result_that_is_read_before_it_is_done_is_told(called):
    reads = [[call.arguments.get("read") for call in collectives(called, "hasty", 0, step)] for step in (0, 1)]
    assert reads == [["before it was done"], ["before it was done"]]
    (call,) = collectives(called, "hasty", 0)
    (other,) = collectives(called, "hasty", 1)
    assert call.outputs[0].content == other.outputs[0].content
    assert not any("read" in call.arguments for rank in RANKS for call in collectives(called, "calls", rank))


def test_a_cast_of_what_a_collective_returned_comes_from_the_collective(called):
    (call,) = collectives(called, "narrow", 0)
    (add,) = [each for each in read_dump(called / "narrow").calls(step=0, rank=0) if each.operator == "add"]
    assert add.inputs[0].source == (call.order, call.outputs[0].index)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["data_parallel", "sharded"])
@pytest.mark.parametrize("rank", RANKS)
def test_training_has_the_same_bits_as_without_capture(trained, part, rank):
    assert facts(trained, part, rank)["same"] == [True, True]


@pytest.mark.slow
def test_gradients_that_cpp_reduces_are_records(trained):
    """DistributedDataParallel divides each rank's gradients by the number of ranks, then adds them up."""
    for step in (0, 1):
        calls = [collectives(trained, "data_parallel", rank, step, "backward") for rank in RANKS]
        assert [[call.operator for call in each] for each in calls] == [["all_reduce"], ["all_reduce"]]
        assert all(call.module == "(outside)" for (call,) in calls)
        assert len({call.inputs[0].content for (call,) in calls}) == 2
        assert len({call.outputs[0].content for (call,) in calls}) == 1


@pytest.mark.slow
def test_shards_are_gathered_and_gradients_scattered(trained):
    forward = [call.operator for call in collectives(trained, "sharded", 0)]
    backward = [call.operator for call in collectives(trained, "sharded", 0, phase="backward")]
    assert set(forward) == {"all_gather_into_tensor"}
    assert "reduce_scatter_tensor" in backward
