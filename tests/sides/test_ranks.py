"""Sides of several ranks: started, recorded together, and one of them failing."""

import sys
from dataclasses import replace

import pytest

from precflow.config.schema import Side
from precflow.dumps.formats import read_dump
from precflow.errors import SideError
from precflow.sides.launch import run_agent
from precflow.sides.ranks import Ranks


def collective(rank, number, group="0,1", operator="all_reduce"):
    number, place = str(number), "step 0, in fc"
    return {"event": "collective", "rank": str(rank), "operator": operator, "group": group, "number": number, "place": place}


def told(*events):
    ranks = Ranks()
    for event in events:
        ranks.note(event)
    return ranks


def test_a_rank_that_dies_without_a_word_is_named_before_those_that_report_an_error():
    error = {"event": "error", "rank": "0", "message": "Connection closed by peer", "next_step": ""}
    ranks = told(collective(0, 3), collective(1, 2), error, {"event": "ended", "rank": "1", "code": "-9"})
    assert ranks.find_culprit(timed_out=False) == 1
    message, _ = ranks.describe_failure(1, 2)
    assert message.startswith("rank 1 of 2 was killed by SIGKILL; rank 0 was in all_reduce number 3 of ranks 0,1")
    assert "which rank 1 has not reached" in message
    assert message.endswith("the last that rank 1 began was all_reduce number 2 of ranks 0,1 (step 0, in fc)")


def test_the_first_rank_that_reports_an_error_is_the_one_that_failed():
    errors = [{"event": "error", "rank": rank, "message": f"of {rank}", "next_step": "look"} for rank in ("1", "0")]
    ranks = told(*errors, {"event": "ended", "rank": "1", "code": "2"}, {"event": "ended", "rank": "0", "code": "2"})
    assert ranks.find_culprit(timed_out=False) == 1
    assert ranks.describe_failure(1, 2) == ("rank 1 of 2: of 1", "look")


def test_after_a_timeout_the_rank_is_named_that_has_begun_fewer_collectives_of_a_group():
    ranks = told(*[collective(rank, 4, "0,1,2,3") for rank in (0, 1, 3)], collective(2, 3, "0,1,2,3"))
    assert ranks.find_culprit(timed_out=True) == 2
    assert ranks.find_culprit(timed_out=False) is None
    assert "rank 3 was in all_reduce number 4 of ranks 0,1,2,3 (step 0, in fc), which rank 2 has not reached" in (
        ranks.describe_waiting(2)
    )


def test_a_rank_that_has_begun_none_is_late_too():
    assert told(collective(0, 0)).find_culprit(timed_out=True) == 1


def test_ranks_that_are_as_far_as_each_other_leave_the_question_open():
    ranks = told(collective(0, 1), collective(1, 1))
    assert ranks.find_culprit(timed_out=True) is None
    assert "has not reached" not in ranks.describe_waiting(None)


def record(request, output, timeout=120.0, side=None):
    run_agent(request, side=side or Side(), folder=output, variables={}, timeout=timeout)


def failure(request, output, timeout=120.0):
    with pytest.raises(SideError) as caught:
        record(request, output, timeout)
    return caught.value


def test_two_ranks_share_the_batch_and_write_one_dump(asked, output):
    record(asked(ranks=2), output)
    dump = read_dump(output)
    assert dump.verify() == []
    assert {call.rank for call in dump.calls()} == {0, 1}
    assert {call.inputs[0].shape for call in dump.calls() if call.operator == "linear"} == {(1, 4)}
    assert list(dump.header.inputs.entries) == ["features"]
    assert "a line of the user's own" in (output / "agent-rank1.log").read_text()
    assert not list(output.glob("rank*.json"))


def test_a_rank_that_is_killed_is_named(asked, output):
    error = failure(asked("killed@1", ranks=2), output)
    assert error.message.startswith("target: rank 1 of 2 was killed by SIGKILL")
    assert "a line of the user's own" in error.log


def test_a_rank_whose_workload_raises_is_named(asked, output):
    error = failure(asked("raises@1", ranks=2), output)
    assert error.message.startswith("target: rank 1 of 2: the workload raised ValueError: upset (toy_launched.py:")
    assert not (output / "dump.json").exists()


def test_a_batch_that_the_ranks_cannot_share_is_refused(asked, output):
    error = failure(asked(ranks=3), output)
    assert "workload.inputs has a batch of 2, and 3 ranks cannot share it equally" in error.message
    assert "multiple of 3" in error.next_step


@pytest.mark.npu
@pytest.mark.parametrize("of_script", [False, True])
def test_a_device_without_communication_is_refused(asked, output, tmp_path, of_script):
    (tmp_path / "train.py").write_text("print('never run')")
    workload = {"workload": {"script": str(tmp_path / "train.py")}} if of_script else {}
    error = failure(asked(ranks=2, device=["emulated"], **workload), output)
    expected = "target.ranks=2, and ranks cannot talk to each other on the emulated device"
    assert expected in error.message
    assert error.next_step == "target.device=cpu tries the recipe with gloo; target.ranks=1 keeps the device"


def test_we_may_be_a_rank_of_something_else(asked, output, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    record(asked(), output)
    assert {call.rank for call in read_dump(output).calls()} == {0}


def test_a_launcher_that_starts_another_number_of_ranks_is_refused(asked, output):
    side = replace(Side(), launcher=("env", "RANK=0", "WORLD_SIZE=4"))
    with pytest.raises(SideError, match=r"target.ranks is 2, and the launcher has started 4"):
        record(asked(ranks=2), output, side=side)


@pytest.mark.slow
def test_torchrun_may_start_them(asked, output):
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python", "{command}"]
    record(asked(ranks=2), output, side=replace(Side(), launcher=tuple(words)))
    dump = read_dump(output)
    assert dump.verify() == []
    assert {call.rank for call in dump.calls()} == {0, 1}


@pytest.mark.slow
def test_four_ranks_share_the_batch(asked, output):
    request = asked(ranks=4)
    request["workload"]["inputs"]["rows"] = 8
    record(request, output)
    shapes = {call.rank: call.inputs[0].shape for call in read_dump(output).calls() if call.operator == "linear"}
    assert shapes == dict.fromkeys(range(4), (2, 4))


def test_a_request_for_no_rank_is_refused(asked, output):
    with pytest.raises(SideError, match="ranks is 0, expected a number of at least 1"):
        record(asked(ranks=0), output)
