"""Who introduces and who inherits, on graphs made by hand."""

import pytest
import torch
from torch import nn

import precflow
from precflow.diagnosis.localize import localize
from precflow.dumps.header import ContentEntries, RepeatCheck
from precflow.judgement.verdicts import Judged


def locate(dump, judge_calls, statuses, *, target=None, **options):
    measures, judged = judge_calls(dump, statuses, **options)
    return localize(dump, target or dump, measures, judged)


def role(region, call):
    return region.roles[call.outputs[0].text]


@pytest.fixture
def block(hand_made):
    """Two layers: norm, linear, residual add, each layer a module."""
    dump = hand_made()
    stream = dump.operator("embed", "embedding", {"content": "ids"}, {"weight": "embed.weight"})
    for layer in ("layers.0", "layers.1"):
        norm = dump.operator(f"{layer}.norm", "layer_norm", stream)
        norm_module = dump.module(f"{layer}.norm", stream, content=norm.outputs[0].content)
        linear = dump.operator(f"{layer}.mlp", "linear", norm_module)
        mlp_module = dump.module(f"{layer}.mlp", norm_module, content=linear.outputs[0].content)
        stream = dump.operator(layer, "add", mlp_module, stream)
        dump.module(layer, stream)
    dump.module("", stream)
    return dump


def names_after(dump, name):
    names = [call.name for call in dump.made]
    return dict.fromkeys(names[names.index(name) :], "fail")


def test_nothing_fails_nothing_starts(block, judge_calls):
    region = locate(block, judge_calls, {})
    assert (region.start, region.suspects) == ("", ())
    assert set(region.roles.values()) == {"agrees"}


def test_the_operator_introduces_and_its_module_and_all_later_inherit(block, judge_calls):
    region = locate(block, judge_calls, names_after(block, "layers.0.norm / layer_norm"))
    assert region.start == "layers.0.norm / layer_norm"
    assert [suspect.name for suspect in region.suspects] == [region.start]
    assert list(region.roles.values()).count("introduces") == 1
    assert region.suspects[0].site == "model.py:1 in forward"
    assert role(region, block.made[2]) == "inherits"


def test_two_sequential_faults_with_a_sound_record_between_are_both_found(block, judge_calls):
    statuses = {"layers.0.norm / layer_norm": "fail", "layers.0.norm": "fail", "layers.1.mlp / linear": "fail"}
    region = locate(block, judge_calls, statuses)
    assert [suspect.name for suspect in region.suspects] == ["layers.0.norm / layer_norm", "layers.1.mlp / linear"]
    assert any("2 calls introduce" in note for note in region.notes)


def test_parallel_branches_are_suspects_in_order_of_the_graph(hand_made, judge_calls):
    dump = hand_made()
    stream = dump.operator("norm", "layer_norm")
    queries = [dump.operator(f"attn.{part}", "linear", stream) for part in "qkv"]
    dump.operator("attn", "matmul", *queries[:2])
    region = locate(dump, judge_calls, {**{f"attn.{part} / linear": "fail" for part in "qkv"}, "attn / matmul": "fail"})
    assert [suspect.module for suspect in region.suspects] == ["attn.q", "attn.k", "attn.v"]
    assert role(region, dump.made[-1]) == "inherits"


def test_movement_hands_an_error_on(hand_made, judge_calls):
    dump = hand_made()
    first = dump.operator("a", "linear")
    moved = dump.operator("a", "view", first, movement=True)
    again = dump.operator("a", "transpose", moved, movement=True)
    last = dump.operator("b", "matmul", again)
    region = locate(dump, judge_calls, {"a / linear": "fail", "b / matmul": "fail"})
    assert region.start == "a / linear"
    assert role(region, last) == role(region, again) == "inherits"


def test_movement_of_equal_bits_that_puts_values_elsewhere_is_the_suspect(hand_made, judge_calls):
    dump = hand_made()
    first = dump.operator("a", "linear")
    moved = dump.operator("a", "transpose", first, movement=True)
    last = dump.operator("b", "matmul", moved)
    region = locate(dump, judge_calls, {"b / matmul": "fail"}, equal={"a / linear"})
    assert region.start == "a / transpose"
    assert "puts the values elsewhere" in region.suspects[0].why
    assert role(region, last) == "inherits"


def test_equal_movement_is_not_blamed(hand_made, judge_calls):
    dump = hand_made()
    moved = dump.operator("a", "transpose", dump.operator("a", "linear"), movement=True)
    dump.operator("b", "matmul", moved)
    region = locate(dump, judge_calls, {"b / matmul": "fail"}, equal={"a / linear", "a / transpose"})
    assert region.start == "b / matmul"


def test_nan_spreads_from_its_first_producer(block, judge_calls):
    statuses = dict.fromkeys(names_after(block, "layers.0.mlp / linear"), "nonfinite")
    region = locate(block, judge_calls, statuses)
    assert region.start == "layers.0.mlp / linear"
    assert "NaN or Inf" in region.suspects[0].why
    assert len(region.suspects) == 1


def test_in_place_result_is_followed_through_its_last_writer(hand_made, judge_calls):
    dump = hand_made()
    stream = dump.operator("a", "linear")
    written = dump.operator("a", "add_", stream)
    last = dump.operator("b", "linear", written)
    region = locate(dump, judge_calls, {"a / add_": "fail", "b / linear": "fail"})
    assert region.start == "a / add_"
    assert role(region, last) == "inherits"


def test_without_operators_the_innermost_failing_module_is_the_suspect(hand_made, judge_calls):
    dump = hand_made()
    first = dump.module("layers.0.norm", {"content": "x"})
    second = dump.module("layers.0.mlp", first)
    layer = dump.module("layers.0", {"content": "x"}, content="sum")
    dump.module("layers.1", layer)
    region = locate(dump, judge_calls, {"layers.0.mlp": "fail", "layers.0": "fail", "layers.1": "fail"})
    assert region.start == "layers.0.mlp"
    assert [suspect.name for suspect in region.suspects] == ["layers.0.mlp"]
    assert role(region, layer) == "inherits"
    assert second.name == "layers.0.mlp"


def test_a_module_whose_children_agree_is_itself_the_suspect(hand_made, judge_calls):
    dump = hand_made()
    child = dump.module("block.mlp", {"content": "x"})
    dump.module("block", {"content": "x"})
    region = locate(dump, judge_calls, {"block": "fail"})
    assert child.name == "block.mlp"
    assert region.start == "block"
    assert "nothing recorded inside it fails" in region.suspects[0].why


def test_accumulated_rounding_is_said_and_ranked_behind_clear_suspects(hand_made, judge_calls):
    dump = hand_made()
    early = dump.operator("a", "linear")
    drifted = dump.operator("b", "add", early)
    dump.operator("c", "linear", {"content": "x", "weight": "w"})
    region = locate(
        dump,
        judge_calls,
        {"b / add": "fail", "c / linear": "fail"},
        shares={"a / linear": 0.95, "b / add": 1.02, "c / linear": 3.0},
    )
    assert drifted.name == "b / add"
    assert [suspect.name for suspect in region.suspects] == ["c / linear", "b / add"]
    assert "use 95% of their limit (a / linear): accumulated" in region.suspects[1].why


@pytest.mark.parametrize(
    ("between", "last", "expected"),
    [(0.9, 1.5, "inherits"), (0.2, 1.5, "introduces"), (0.9, 30.0, "introduces"), (0.9, 0.4, "introduces")],
)
def test_an_error_that_passes_in_between_is_inherited_unless_it_is_new(hand_made, judge_calls, between, last, expected):
    dump = hand_made()
    fault = dump.operator("a", "linear")
    passes = dump.operator("a", "add", fault)
    again = dump.operator("b", "matmul", passes)
    shares = {"a / linear": 10.0, "a / add": between, "b / matmul": last}
    region = locate(dump, judge_calls, {"a / linear": "fail", "b / matmul": "fail"}, shares=shares)
    assert region.start == "a / linear"
    assert role(region, again) == expected
    assert any(" again by an error" in note for note in region.notes) is (expected == "inherits")


def test_an_accepted_difference_before_a_suspect_is_said(hand_made, judge_calls):
    dump = hand_made()
    dump.operator("b", "add", dump.operator("a", "linear"))
    region = locate(dump, judge_calls, {"a / linear": "accepted", "b / add": "fail"})
    assert "accepted difference at a / linear" in region.suspects[0].why
    assert region.suspects[0].accepted == "a / linear"


def test_an_accepted_record_does_not_agree(hand_made, judge_calls):
    dump = hand_made()
    taken = dump.operator("a", "linear")
    after = dump.operator("b", "add", taken)
    region = locate(dump, judge_calls, {"a / linear": "accepted"})
    assert (role(region, taken), role(region, after)) == ("accepted", "agrees")


def test_what_could_not_be_compared_is_walked_through_and_said(hand_made, judge_calls):
    dump = hand_made()
    torn = dump.operator("b", "relu", dump.operator("a", "linear"))
    dump.operator("c", "add", torn)
    region = locate(dump, judge_calls, {"b / relu": "unreadable", "c / add": "fail"})
    assert role(region, torn) == "unknown"
    assert region.suspects[0].why.endswith("b / relu before it could not be compared")
    inherits = locate(dump, judge_calls, {"a / linear": "fail", "b / relu": "unreadable", "c / add": "fail"})
    assert inherits.start == "a / linear"


def test_a_difference_from_outside_is_named(hand_made, judge_calls):
    reference, target = hand_made(), hand_made()
    for dump, content in ((reference, "one"), (target, "two")):
        dump.operator("embed", "embedding", {"content": content}, {"weight": "embed.weight", "content": "w"})
    region = locate(reference, judge_calls, {"embed / embedding": "fail"}, target=target)
    assert "its input 0 differs between the sides before any operator ran" in region.suspects[0].why


def test_a_gradient_that_the_loss_leaves_is_named_as_what_arrives(hand_made, judge_calls):
    reference, target = hand_made(), hand_made()
    for dump, content in ((reference, "one"), (target, "two")):
        dump.module("head", {"content": "x"})
        dump.module("head", {"content": content}, phase="backward")
    judged = judge_calls(reference, {"head (backward)": "fail"})
    region = localize(reference, target, *judged, lambda left, right: Judged(left.text, "fail", ratio=2.0))
    (suspect,) = region.suspects
    assert suspect.why.startswith("input 0 of head (backward), which nothing recorded made, does not agree")
    assert suspect.arrives == "head/backward.input.0"


def test_a_differing_weight_is_named(hand_made, judge_calls):
    reference, target = hand_made(), hand_made()
    for dump, content in ((reference, "one"), (target, "two")):
        dump.operator("a", "linear", {"content": "x"}, {"weight": "a.weight", "content": content})
    region = locate(reference, judge_calls, {"a / linear": "fail"}, target=target)
    assert "its weight a.weight differs" in region.suspects[0].why
    for status, weight in (("fail", "a.weight"), ("pass", "")):  # it may differ by the rounding of earlier steps
        judged = judge_calls(reference, {"a / linear": "fail"})
        judge_input = lambda left, right, status=status: Judged(left.text, status, ratio=2.0)  # noqa: E731
        assert localize(reference, target, *judged, judge_input).suspects[0].weight == weight


class Scaled(nn.Module):
    """Multiplies groups by their scales, which are the same ones on both sides, and transposed on one before they are used."""

    def __init__(self, *, turned):
        super().__init__()
        self.register_buffer("scale", torch.rand(4, 6, 1, generator=torch.Generator().manual_seed(1)) + 0.5)
        self.turned = turned

    def forward(self, x):
        scale = self.scale.view(6, 4).t().reshape(4, 6, 1) if self.turned else self.scale
        return (x.view(4, 6, -1) * scale).flatten(1)


def test_what_a_call_of_the_target_has_made_of_a_weight_is_no_other_weight(tmp_path):
    for name, turned in (("a", False), ("b", True)):
        model = nn.Sequential(Scaled(turned=turned), nn.Tanh())
        with precflow.capture(model, tmp_path / name, level=["module", "api"]), torch.no_grad():
            model(torch.randn(4, 12, generator=torch.Generator().manual_seed(2)))
    result = precflow.compare(tmp_path / "a", tmp_path / "b")
    assert (result.verdict, result.start) == ("misaligned", "0 / mul")
    assert "PF405" not in [finding.rule for finding in result.findings]


def test_digests_that_differ_are_a_note(hand_made, make_header, judge_calls):
    reference, target = (hand_made(header=make_header(weights=ContentEntries(digest=digest))) for digest in ("one", "two"))
    assert locate(reference, judge_calls, {}, target=target).notes == ("the weights of the two sides differ already",)


def test_unrepeatable_names_keep_their_order_and_say_their_side(hand_made, make_header, judge_calls):
    texts = (
        "layers.0.mlp/linear.0/forward.output.0",
        "layers.0.mlp/forward.output.0",
        "(model)/forward.output.0",
        "not an identity",
    )
    target = hand_made(header=make_header(repeat=RepeatCheck(checked=True, different=texts)))
    region = locate(hand_made(), judge_calls, {}, target=target)
    assert region.unrepeatable == (
        "target: layers.0.mlp / linear",
        "target: layers.0.mlp",
        "target: (model)",
        "target: not an identity",
    )


def test_a_failing_record_without_a_call_is_unknown_and_said(hand_made, judge_calls):
    dump = hand_made()
    dump.operator("a", "linear")
    measures, judged = judge_calls(dump, {"a / linear": "fail"})
    region = localize(hand_made(), hand_made(), measures, judged)
    assert set(region.roles.values()) == {"unknown"}
    assert any("belong to no call" in note for note in region.notes)


def test_another_shape_and_another_dtype_are_said(hand_made, judge_calls):
    dump = hand_made()
    dump.operator("a", "linear")
    assert "another shape" in locate(dump, judge_calls, {"a / linear": "shape"}).suspects[0].why
    assert "another dtype" in locate(dump, judge_calls, {"a / linear": "dtype"}).suspects[0].why


def test_a_guessed_edge_is_a_note(hand_made, judge_calls):
    dump = hand_made()
    dump.operator("a", "linear")
    later = dump.operator("b", "relu", {"content": "unknown"})
    region = locate(dump, judge_calls, {"a / linear": "fail", "b / relu": "fail"})
    assert role(region, later) == "inherits"
    assert any("guessed from call order" in note for note in region.notes)
