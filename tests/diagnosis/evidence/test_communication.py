"""What is told about a collective and about the ranks, on dumps made by hand."""

import numpy as np
import pytest

from precflow.diagnosis.evidence.communication import find_lost, gather, gather_run
from precflow.diagnosis.findings import Suspect
from precflow.judgement.verdicts import Judged

RANKS = 4
GIVEN = np.random.default_rng(0).normal(size=(RANKS, 6)).astype(np.float32)
SUM, MEAN = GIVEN.sum(0), GIVEN.mean(0)


@pytest.fixture
def collective(hand_made):
    """Return a function that makes a dump with one collective of four ranks."""

    def make(result, given=GIVEN, operator="all_reduce", group="[0, 1, 2, 3]", **arguments):
        dump = hand_made()
        for rank in range(RANKS):
            own = result[rank] if isinstance(result, list) else result
            arguments = {"group": group, **arguments}
            dump.operator("fc", operator, {"value": given[rank]}, rank=rank, arguments=arguments, value=own)
        return dump

    return make


def told(reference, target, rank=0):
    return gather(reference, target, reference.made[rank], target.made[rank])


@pytest.mark.parametrize(
    ("here", "there", "reductions"),
    [
        (SUM, MEAN, ["sum", "mean"]),
        (MEAN, SUM, ["mean", "sum"]),
        (SUM, GIVEN.max(0), ["sum", "maximum"]),
        (GIVEN.min(0), GIVEN.prod(0), ["minimum", "product"]),
    ],
)
def test_another_reduction_is_named_by_what_it_computes(collective, here, there, reductions):
    evidence = told(collective(here), collective(there))
    assert evidence["reductions"] == reductions
    assert evidence["ranks_agree"]


def test_rounding_is_no_other_reduction(collective):
    assert told(collective(SUM), collective(SUM * np.float32(1 + 1e-6))) == {"collective": "all_reduce", "ranks_agree": True}


def test_a_reduction_that_several_explain_is_not_named(collective):
    same = np.tile(GIVEN[:1], (RANKS, 1))
    assert "reductions" not in told(collective(same[0], same), collective(same.sum(0), same))


@pytest.mark.parametrize(
    ("there", "left_out"),
    [
        (GIVEN[:3].sum(0), "rank 3"),
        (GIVEN[[0, 2, 3]].mean(0), "rank 1"),
        (GIVEN[:3].sum(0) / 4, "rank 3"),
        (GIVEN[0], "ranks 1, 2, 3"),
    ],
)
def test_ranks_that_are_left_out_are_named(collective, there, left_out):
    assert told(collective(SUM), collective(there))["left_out"] == left_out


def test_what_nothing_explains_is_left_open(collective):
    evidence = told(collective(SUM), collective(SUM * np.float32(1.01)))
    assert evidence == {"collective": "all_reduce", "ranks_agree": True}


def test_a_rank_that_gives_something_else_is_seen(collective):
    other = GIVEN.copy()
    other[2] += 1
    evidence = told(collective(SUM), collective(other.sum(0), other))
    assert evidence == {"collective": "all_reduce", "ranks_agree": False}


def test_another_group_is_named(collective):
    evidence = told(collective(SUM), collective(GIVEN[:2].sum(0), group="[0, 1]"))
    assert evidence["groups"] == ["ranks 0, 1, 2, 3", "ranks 0, 1"]


def test_each_rank_gets_its_share_of_a_scattered_sum(collective):
    given = np.random.default_rng(1).normal(size=(RANKS, 8)).astype(np.float32)
    here = [given.sum(0)[2 * rank : 2 * rank + 2] for rank in range(RANKS)]
    there = [part / 4 for part in here]
    reductions = told(
        collective(here, given, "reduce_scatter_tensor"), collective(there, given, "reduce_scatter_tensor"), rank=3
    )["reductions"]
    assert reductions == ["sum", "mean"]


def test_other_calls_have_no_such_evidence(hand_made):
    dump = hand_made()
    call = dump.operator("fc", "linear", {"value": GIVEN[0]}, value=GIVEN[0])
    assert gather(dump, dump, call, call) == {}


def judged_run(dump, failing, missing=()):
    """Return the evidence about a run in which ``operator@rank`` names fail, the first the suspect, or have no partner."""
    texts = {f"{call.operator}@{call.rank}": call.outputs[0].text for call in dump.made}
    statuses = {**dict.fromkeys(missing, "unpaired_reference"), **dict.fromkeys(failing, "fail")}
    judged = [Judged(record=text, status=statuses.get(name, "pass")) for name, text in texts.items()]
    suspects = [Suspect(record=texts[failing[0]], name="fc", module="fc", operator="mul", order=0, ratio=2.0, why="")]
    return gather_run(dump, dump, suspects, judged)


def test_a_rank_that_errs_alone_until_they_meet_is_told(collective):
    dump = collective(SUM)
    dump.made.clear()
    for rank in range(RANKS):
        dump.operator("fc", "mul", {"content": "x"}, rank=rank)
        dump.operator("fc", "all_reduce", {"content": "y"}, rank=rank, arguments={"group": "[0, 1, 2, 3]"})
    evidence = judged_run(dump, ["mul@2", *[f"all_reduce@{rank}" for rank in range(RANKS)]])
    assert (evidence["ranks"], evidence["first_rank"], evidence["only_rank"]) == (RANKS, 2, True)
    assert not judged_run(dump, ["mul@2", "mul@3"])["only_rank"]
    assert not judged_run(dump, ["mul@2"], missing=["mul@3"])["only_rank"]
    assert judged_run(dump, ["mul@2"], missing=["mul@2"])["only_rank"]


def test_a_rank_that_gets_what_another_gave_does_not_err_alone(collective):
    dump = collective(SUM)
    dump.made.clear()
    for rank in range(RANKS):
        dump.operator("fc", "all_gather", {"content": "x"}, rank=rank, arguments={"group": "[0, 1, 2, 3]"})
        dump.operator("fc", "mul", {"content": "x"}, rank=rank)
        dump.operator("fc", "scatter", {"content": "y"}, rank=rank, arguments={"group": "[0, 1, 2, 3]", "root": "1"})
    assert not judged_run(dump, ["scatter@0"])["only_rank"]
    assert judged_run(dump, ["mul@2", *[f"scatter@{rank}" for rank in range(RANKS)]])["only_rank"]
    assert not judged_run(dump, ["mul@2", "mul@1", *[f"scatter@{rank}" for rank in range(RANKS)]])["only_rank"]


def test_one_process_has_no_evidence_about_ranks(hand_made):
    dump = hand_made()
    dump.operator("fc", "mul", {"content": "x"})
    assert judged_run(dump, ["mul@0"]) == {}


def test_a_result_that_only_the_target_reads_too_early_is_named(collective):
    early, fine = collective(SUM, read="before it was done"), collective(SUM)
    assert gather_run(fine, early, [], [])["read_early"] == ["fc / all_reduce"]
    assert gather_run(early, early, [], [])["read_early"] == []


@pytest.fixture
def lookup(hand_made):
    """Return a function that makes a dump of a table whose rows are shared among two ranks, and its suspect."""
    rows = np.float32([[1, 2, 3], [4, 5, 6]])

    def make(*, summed=True, kept=slice(None)):
        dump = hand_made()
        for rank in range(2):
            part = np.where(np.arange(2)[:, None] == rank, rows, np.float32(0))
            used = np.zeros_like(rows)
            used[kept] = rows[kept]
            if summed:
                dump.operator("embed", "all_reduce", {"value": part}, rank=rank, arguments={"group": "[0, 1]"}, value=rows)
            dump.operator("embed", "relu", {"value": part}, rank=rank, value=used if summed else part)
        texts = [call.outputs[0].text for call in dump.made if call.operator == "relu"]
        return dump, Suspect(record=texts[0], name="embed", module="embed", operator="relu", order=0, ratio=2.0, why="")

    return make


def test_a_result_that_is_used_in_part_is_lost(lookup):
    (reference, suspect), (target, _) = lookup(), lookup(kept=[0])
    assert find_lost(reference, target, suspect)["lost_result"] == "embed / all_reduce"


def test_what_a_rank_never_asked_the_others_for_is_not_lost(lookup):
    """Its own part of a shared vocabulary is zeros for all other tokens, as what has been lost would be."""
    (reference, suspect), (target, _) = lookup(), lookup(summed=False)
    assert find_lost(reference, target, suspect) == {}
