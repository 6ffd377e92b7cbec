"""Collectives across ranks: which calls are one, what each is made of, and in which order the graph is."""

import pytest

from precflow.diagnosis.collectives import describe_lone, find_givers, find_lone
from precflow.diagnosis.graph import build_graph, key_of
from precflow.diagnosis.localize import localize
from precflow.dumps.collectives import read_group

PAIR = {"group": "[0, 1]"}


@pytest.fixture
def two_ranks(hand_made):
    """Two ranks: linear, mul, all_reduce, tanh, a module around them."""
    dump = hand_made()
    for rank in (0, 1):
        linear = dump.operator("fc", "linear", {"content": "x"}, {"weight": "fc.weight"}, rank=rank)
        mul = dump.operator("fc", "mul", linear, rank=rank)
        reduced = dump.operator("fc", "all_reduce", mul, rank=rank, arguments=PAIR)
        tanh = dump.operator("fc", "tanh", reduced, rank=rank)
        dump.module("fc", {"content": "x"}, rank=rank, content=tanh.outputs[0].content)
    return dump


def find(dump, operator, rank):
    return next(call for call in dump.made if call.operator == operator and call.rank == rank)


def failing(dump, judge_calls, *names):
    """Judge ``operator@rank`` names as failing."""
    measures, judged = judge_calls(dump, {})
    calls = {call.outputs[0].text: f"{call.operator or 'module'}@{call.rank}" for call in dump.made}
    return measures, [
        type(one)(record=one.record, status="fail", ratio=5.0) if calls[one.record] in names else one for one in judged
    ]


def suspects(dump, judge_calls, *names):
    region = localize(dump, dump, *failing(dump, judge_calls, *names))
    return [(one.name, one.why.partition(":")[0]) for one in region.suspects]


def test_it_is_made_of_what_every_rank_gave(two_ranks):
    givers = find_givers(two_ranks.calls())
    reduced = [find(two_ranks, "all_reduce", rank) for rank in (0, 1)]
    assert givers[key_of(reduced[0])] == givers[key_of(reduced[1])] == tuple(reduced)
    sources = {edge.source[0] for edge in build_graph(two_ranks.calls())[key_of(reduced[0])].edges}
    assert sources == {key_of(find(two_ranks, "mul", rank)) for rank in (0, 1)}


def test_it_comes_after_what_the_other_ranks_gave(two_ranks):
    order = list(build_graph(two_ranks.calls()))
    assert order.index(key_of(find(two_ranks, "mul", 1))) < order.index(key_of(find(two_ranks, "all_reduce", 0)))
    assert len(order) == len(two_ranks.made)


def test_the_rank_that_errs_is_named_and_the_others_inherit(two_ranks, judge_calls):
    names = ("mul@1", "all_reduce@0", "all_reduce@1", "tanh@0", "tanh@1", "module@0", "module@1")
    assert suspects(two_ranks, judge_calls, *names) == [("fc / mul (rank 1)", "on rank 1")]


def test_a_collective_whose_inputs_agree_on_every_rank_is_the_suspect(two_ranks, judge_calls):
    names = ("all_reduce@0", "all_reduce@1", "tanh@0", "tanh@1", "module@0", "module@1")
    assert suspects(two_ranks, judge_calls, *names) == [
        ("fc / all_reduce", "on rank 0"),
        ("fc / all_reduce (rank 1)", "on rank 1"),
    ]


def test_a_broadcast_is_made_of_what_the_root_gave(hand_made):
    dump = hand_made()
    for rank in (0, 1):
        made = dump.operator("fc", "linear", {"content": "x"}, rank=rank)
        dump.operator("fc", "broadcast", made, rank=rank, arguments={**PAIR, "root": "1"})
    givers = find_givers(dump.calls())
    root = find(dump, "broadcast", 1)
    assert [givers[key_of(find(dump, "broadcast", rank))] for rank in (0, 1)] == [(root,), (root,)]


def test_what_is_received_is_what_was_sent(hand_made):
    dump = hand_made()
    sent = [dump.operator("fc", "send", {"content": f"{n}"}, arguments={**PAIR, "destination": "1"}, ordinal=n) for n in (0, 1)]
    got = [dump.operator("fc", "recv", rank=1, arguments={**PAIR, "source": "0"}, ordinal=n) for n in (0, 1)]
    givers = find_givers(dump.calls())
    assert [givers[key_of(call)] for call in got] == [(call,) for call in sent]


def test_ranks_that_wait_for_each_other_are_ordered_all_the_same(hand_made):
    dump = hand_made()
    for rank, names in ((0, ("all_reduce", "broadcast")), (1, ("broadcast", "all_reduce"))):
        for name in names:
            dump.operator("fc", name, {"content": "x"}, rank=rank, arguments=PAIR)
    assert len(build_graph(dump.calls())) == 4


@pytest.mark.parametrize(("text", "group"), [("[0, 3]", (0, 3)), ("[]", ()), ("all", ()), ('["a"]', ())])
def test_a_group_that_cannot_be_read_is_empty(hand_made, text, group):
    assert read_group(hand_made().operator("fc", "all_reduce", arguments={"group": text})) == group


def test_a_collective_is_missing_unless_what_it_carries_goes_another_way(hand_made):
    """One side reduces each of two gradients; the other has a bucket, as large as the first alone."""
    sides = hand_made(), hand_made()
    for dump in sides:
        gradients = [dump.module(name, phase="gradient") for name in ("a", "b")]
        if dump is sides[0]:
            for number, gradient in enumerate(gradients):
                dump.operator("(outside)", "all_reduce", gradient, arguments=PAIR, ordinal=number)
        else:
            dump.operator("(outside)", "all_reduce", {"shape": (6,)}, arguments=PAIR, phase="backward", shape=(6,))
    (lone,) = find_lone(sides[0].calls(), sides[1].calls())  # the bucket is filled by the first gradient
    assert lone.parameters == ("b.0",)
    assert describe_lone([lone, lone]) == ["all_reduce of the gradients of b.0"]
    assert find_lone(sides[1].calls(), sides[0].calls()) == []
    assert find_lone(sides[0].calls(), sides[0].calls()) == []


def test_what_a_stage_of_a_pipeline_was_sent_comes_from_the_other_rank(hand_made, judge_calls):
    """It was received before the step began: only its bits tell."""
    dump = hand_made()
    linear = dump.operator("first", "linear", {"content": "x"}, rank=0)
    dump.operator("first", "mul", {"content": "y"}, rank=0, content=None)
    dump.operator("second", "tanh", {"content": linear.outputs[0].content}, rank=1)
    names = ("linear@0", "tanh@1")
    assert suspects(dump, judge_calls, *names) == [("first / linear", "on rank 0")]
    assert suspects(dump, judge_calls, "mul@0", "tanh@1") == [
        ("first / mul", "on rank 0"),
        ("second / tanh (rank 1)", "on rank 1"),
    ]
