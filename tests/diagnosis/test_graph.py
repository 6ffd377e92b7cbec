"""Edges: recorded, recognised by content, taken from execution order; and what a module contains."""

from precflow.diagnosis.graph import build_graph, key_of


def test_a_recorded_edge_leads_to_the_call_and_output_that_it_names(hand_made):
    dump = hand_made()
    first = dump.operator("a", "linear", {"weight": "a.weight"})
    second = dump.operator("b", "add", first)
    nodes = build_graph(dump.calls())
    assert nodes[key_of(second)].edges[0].source == (key_of(first), "0")
    assert not nodes[key_of(second)].edges[0].guessed


def test_weights_and_inputs_from_outside_have_no_source(hand_made):
    dump = hand_made()
    dump.operator("a", "arange")
    call = dump.operator("a", "linear", {"content": "tokens"}, {"weight": "a.weight"})
    edges = build_graph(dump.calls(), outside=frozenset({"tokens"}))[key_of(call)].edges
    assert [edge.source for edge in edges] == [None, None]


def test_a_missing_edge_is_recognised_by_equal_content(hand_made):
    dump = hand_made()
    first = dump.operator("a", "linear", content="same")
    dump.operator("a", "relu", content="other")
    third = dump.operator("b", "add", {"content": "same"})
    edge = build_graph(dump.calls())[key_of(third)].edges[0]
    assert edge.source == (key_of(first), "0")
    assert not edge.guessed


def test_single_numbers_are_not_recognised_by_content(hand_made):
    dump = hand_made()
    dump.operator("a", "sum", shape=(), content="zero")
    dump.operator("a", "linear", shape=(2, 3))
    third = dump.operator("b", "add", {"content": "zero", "shape": ()}, {"content": "x", "shape": (9,)})
    assert build_graph(dump.calls())[key_of(third)].edges[1].source is None


def test_without_any_edge_the_latest_output_of_the_same_shape_is_guessed(hand_made):
    dump = hand_made()
    dump.operator("a", "linear")
    second = dump.operator("a", "relu")
    dump.operator("a", "sum", shape=())
    fourth = dump.operator("b", "add", {"content": "unknown"})
    edge = build_graph(dump.calls())[key_of(fourth)].edges[0]
    assert edge.source == (key_of(second), "0")
    assert edge.guessed


def test_nothing_is_guessed_beside_a_known_edge(hand_made):
    dump = hand_made()
    first = dump.operator("a", "linear")
    second = dump.operator("b", "add", first, {"content": "constant"})
    assert build_graph(dump.calls())[key_of(second)].edges[1].source is None


def test_an_edge_to_a_line_that_is_torn_out_counts_as_missing(hand_made):
    dump = hand_made()
    first = dump.operator("a", "linear")
    second = dump.operator("a", "relu", first)
    third = dump.operator("b", "add", second)
    nodes = build_graph([first, third])
    assert nodes[key_of(third)].edges[0].source == (key_of(first), "0")
    assert nodes[key_of(third)].edges[0].guessed


def test_a_module_contains_what_completed_since_it_was_last_done(hand_made):
    dump = hand_made()
    one = dump.operator("block.mlp", "linear")
    two = dump.module("block.mlp")
    three = dump.operator("block", "add", two)
    block = dump.module("block")
    again = dump.operator("block.mlp", "linear", call=1)
    second = dump.module("block.mlp", call=1)
    root = dump.module("")
    nodes = build_graph(dump.calls())
    assert nodes[key_of(two)].inside == (key_of(one),)
    assert nodes[key_of(block)].inside == tuple(map(key_of, (one, two, three)))
    assert nodes[key_of(second)].inside == (key_of(again),)
    assert len(nodes[key_of(root)].inside) == 6


def test_operators_outside_of_the_model_are_inside_no_module(hand_made):
    dump = hand_made()
    dump.operator("(outside)", "randn")
    root = dump.module("")
    assert build_graph(dump.calls())[key_of(root)].inside == ()


def test_a_module_input_is_never_guessed_from_inside_the_module(hand_made):
    dump = hand_made()
    before = dump.operator("a", "relu")
    dump.operator("block", "relu")
    block = dump.module("block", {"content": "unknown"})
    assert build_graph(dump.calls())[key_of(block)].edges[0].source == (key_of(before), "0")


def test_a_missing_edge_is_recognised_by_an_equal_mark_where_there_is_no_content_id(hand_made):
    dump = hand_made()
    first = dump.operator("a", "linear", content="", mark="same")
    dump.operator("a", "relu", content="", mark="other")
    third = dump.operator("b", "add", {"content": "", "mark": "same"})
    assert build_graph(dump.calls())[key_of(third)].edges[0].source == (key_of(first), "0")


def test_records_that_have_neither_are_not_recognised_as_one_another(hand_made):
    dump = hand_made()
    dump.operator("a", "linear", content="")
    second = dump.operator("b", "add", {"content": "", "shape": (9,)})
    assert [edge.source for edge in build_graph(dump.calls())[key_of(second)].edges] == [None]


def test_a_record_without_content_is_not_taken_for_an_input_without_content(hand_made):
    dump = hand_made()
    first = dump.operator("a", "linear")
    second = dump.operator("b", "add", {"content": ""})
    edge = build_graph(dump.calls(), outside=frozenset({""}))[key_of(second)].edges[0]
    assert (edge.source, edge.guessed) == ((key_of(first), "0"), True)
