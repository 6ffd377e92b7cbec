"""Pairing rules: names and tensors of the target as the reference has them."""

import numpy as np
import pytest
import torch
from torch import nn

import precflow
from precflow.comparison.compare import compare
from precflow.config.schema import PairingRule
from precflow.dumps.formats import read_dump
from precflow.dumps.views.derivation import Derivation
from precflow.dumps.views.paired import fill_pattern, match_text, see_through_rules
from precflow.errors import ConfigError

THREE = ("attn.q", "attn.k", "attn.v")


class Separate(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(4, 6) for _ in range(3))

    def forward(self, x):
        return torch.cat([self.q(x), self.k(x), self.v(x)], -1).sum()


class Fused(nn.Module):
    def __init__(self, parts):
        super().__init__()
        self.qkv = nn.Linear(4, 18)
        with torch.no_grad():
            self.qkv.weight.copy_(torch.cat([part.weight for part in parts]))
            self.qkv.bias.copy_(torch.cat([part.bias for part in parts]))

    def forward(self, x):
        return self.qkv(x).sum()


class Model(nn.Module):
    def __init__(self, attn):
        super().__init__()
        self.attn = attn

    def forward(self, x):
        return self.attn(x)


@pytest.fixture
def record(tmp_path):
    """Return a function that records a model on one input, and opens the dump."""

    def make(model, name, given, **options):
        with precflow.capture(model, tmp_path / name, **options):
            output = model(given)
            if options.get("optimizer"):
                output.backward()
        return read_dump(tmp_path / name)

    return make


@pytest.fixture
def projections(record):
    """Return the dumps of three projections and of the fused one."""
    torch.manual_seed(0)
    separate = Separate()
    given = torch.randn(2, 3, 4)
    models = Model(separate), Model(Fused([separate.q, separate.k, separate.v]))
    return [
        record(model, name, given, optimizer=torch.optim.SGD(model.parameters()), phase=["forward", "gradient"])
        for model, name in zip(models, ("three", "one"), strict=True)
    ]


def measure(sides, *rules):
    return {one.record: one for one in compare(*see_through_rules(*sides, rules, ()))}


@pytest.mark.parametrize(
    ("pattern", "text", "captured"),
    [
        ("a.b", "a.b", ()),
        ("a.b", "a.bc", None),
        ("*", "x.y", ("x.y",)),
        ("*.norm", "a.b.norm", ("a.b",)),
        ("layers.*.x*", "layers.3.xy", ("3", "y")),
        ("a*a", "a", None),  # the two ends may not overlap
        ("*b*", "aab", ("aa", "")),
        ("[a].(b", "[a].(b", ()),  # nothing but the star is special
    ],
)
def test_stars_stand_for_text(pattern, text, captured):
    assert match_text(pattern, text) == captured
    if captured:
        assert fill_pattern(pattern, captured) == text


def test_many_stars_take_no_time():
    assert match_text("*a" * 200 + "b", "a" * 100_000) is None


def test_a_fused_projection_pairs_with_three(projections):
    forward = PairingRule(reference=THREE, target=("attn.qkv",))
    measures = measure(projections, forward, PairingRule(reference=THREE, target=("attn.qkv",), phase="gradient", axis=0))
    for name in THREE:
        for record in (f"{name}/linear.0/forward.output.0", f"{name}/forward.output.0"):
            assert measures[record].join == "paired"
            assert measures[record].pairing == "pairing.rules[0]"
            assert measures[record].metrics["relative_l2"] < 1e-6
        gradient = measures[f"{name}/gradient.output.weight"]
        assert (gradient.pairing, gradient.reference_shape, gradient.target_shape) == ("pairing.rules[1]", (6, 4), (6, 4))
        assert gradient.metrics["relative_l2"] < 1e-6
    assert measures["attn/forward.output.0"].pairing == "name"
    assert not any("qkv" in record for record in measures)


def test_three_projections_pair_with_a_fused_one(projections):
    measures = measure(projections[::-1], PairingRule(reference=("attn.qkv",), target=THREE))
    assert measures["attn.qkv/linear.0/forward.output.0"].metrics["relative_l2"] < 1e-6
    assert measures["attn.qkv/forward.output.0"].target_shape == (2, 3, 18)
    assert not any("attn.q/forward" in record for record in measures)


def test_without_rules_nothing_of_them_pairs(projections):
    measures = measure(projections)
    assert measures["attn.q/forward.output.0"].join == "unpaired_reference"
    assert measures["attn.q/forward.output.0"].pairing == ""


def test_weights_of_both_sides_are_the_same_by_the_names_of_the_rules(record):
    torch.manual_seed(0)
    model = Model(nn.Linear(4, 4))
    inner = nn.Sequential(model)
    sides = record(model, "a", torch.ones(2, 4)), record(inner, "b", torch.ones(2, 4))
    seen = see_through_rules(*sides, [PairingRule(reference=("*",), target=("0.*",))], ())
    assert seen[0].header.weights == seen[1].header.weights
    assert sides[0].header.weights.digest != sides[1].header.weights.digest
    measures = measure(sides, PairingRule(reference=("*",), target=("0.*",)))
    assert measures["attn/linear.0/forward.output.0"].equal


def test_each_output_of_a_call_has_a_rule_of_its_own(record):
    class Pair(nn.Module):
        def __init__(self, change):
            super().__init__()
            self.change = change

        def forward(self, x):
            return {"whole": x * 2, "turned": self.change(x * 3)}

    sides = record(Pair(lambda x: x), "a", torch.ones(2, 4)), record(Pair(lambda x: x.t()[:3]), "b", torch.ones(2, 4))
    first = PairingRule(
        reference=("(model)",), target=("(model)",), index="whole", slices="[:, :2]", reference_slices="[:, :2]"
    )
    second = PairingRule(
        reference=("(model)",), target=("(model)",), index="turned", permute=(1, 0), reference_slices="[:, :3]"
    )
    measures = measure(sides, first, second)
    whole, turned = (measures[f"(model)/forward.output.{name}"] for name in ("whole", "turned"))
    assert (whole.pairing, turned.pairing) == ("pairing.rules[0]", "pairing.rules[1]")
    assert (whole.join, whole.target_shape, turned.join, turned.target_shape) == ("paired", (2, 2), "paired", (2, 3))


def test_weights_of_another_shape_are_left_out_where_a_rule_changes_tensors(record):
    torch.manual_seed(0)
    head = nn.Linear(4, 6)
    padded = nn.Linear(4, 8)
    with torch.no_grad():
        padded.weight[:6], padded.bias[:6] = head.weight, head.bias
    sides = record(Model(head), "a", torch.ones(2, 4)), record(Model(padded), "b", torch.ones(2, 4))
    seen = see_through_rules(*sides, [PairingRule(reference=("attn",), target=("attn",), slices="[:, :6]")], ())
    assert seen[0].header.weights == seen[1].header.weights
    named = see_through_rules(
        *sides, [PairingRule(reference=("attn / linear",), target=("attn / linear",), phase="forward")], ()
    )
    assert named[0].header.weights != named[1].header.weights  # a rule that only renames hides no difference


def test_operators_are_renamed_with_their_module(record):
    class Norm(nn.Module):
        def __init__(self, function):
            super().__init__()
            self.function = function

        def forward(self, x):
            return self.function(x)

    sides = (
        record(Norm(lambda x: x.softmax(-1)), "a", torch.ones(2, 4)),
        record(Norm(lambda x: x.sigmoid() / 2), "b", torch.ones(2, 4)),
    )
    measures = measure(sides, PairingRule(reference=("(model) / softmax",), target=("(model) / sigmoid",)))
    assert measures["(model)/softmax.0/forward.output.0"].pairing == "pairing.rules[0]"
    assert measures["(model)/softmax.0/forward.output.0"].target_shape == (2, 4)


def test_a_rule_that_fits_no_tensor_names_itself_and_the_record(projections):
    rule = PairingRule(reference=("attn.q", "attn.k"), target=("attn.qkv",), sizes=(1, 2))
    with pytest.raises(
        ConfigError, match=r"pairing.rules\[0\] cannot be applied to attn.qkv/linear.0.*cut into parts of \[1, 2\]"
    ):
        measure(projections, rule)


def test_what_was_not_kept_as_tensors_is_not_compared_by_a_rule_that_changes_it(record):
    torch.manual_seed(0)
    separate = Separate()
    models = Model(separate), Model(Fused([separate.q, separate.k, separate.v]))
    given = torch.randn(2, 3, 4)
    sides = [record(model, name, given, detail="statistics") for model, name in zip(models, "ab", strict=True)]
    measures = measure(sides, PairingRule(reference=THREE, target=("attn.qkv",)))
    assert measures["attn.q/forward.output.0"].join == "sampled_out"


@pytest.mark.parametrize(
    ("change", "shapes", "independent"),
    [
        (Derivation(part=1, parts=3), [(2, 6)], lambda x: np.split(x, 3, -1)[1]),
        (Derivation(part=1, parts=2, sizes=(1, 5)), [(2, 6)], lambda x: x[:, 1:]),
        (Derivation(part=2, parts=3, groups=2), [(2, 12)], lambda x: x.reshape(2, 2, 3, 2)[:, :, 2].reshape(2, 4)),
        (Derivation(part=0, parts=2, axis=0), [(4, 3)], lambda x: x[:2]),
        (Derivation(parts=2), [(2, 3), (2, 4)], lambda x, y: np.concatenate([x, y], -1)),
        (Derivation(parts=2, groups=2), [(1, 4), (1, 2)], lambda x, y: np.array([[*x[0, :2], y[0, 0], *x[0, 2:], y[0, 1]]])),
        (Derivation(permute=(1, 0, 2)), [(2, 3, 4)], lambda x: x.transpose(1, 0, 2)),
        (Derivation(slices="[:, :2]"), [(2, 3)], lambda x: x[:, :2]),
        (Derivation(slices="[..., -1]"), [(2, 3)], lambda x: x[..., -1]),
        (Derivation(padding=7.0, padded=(3, 3)), [(2, 3)], lambda x: np.pad(x, ((0, 1), (0, 0)), constant_values=7.0)),
    ],
)
def test_changes_agree_with_numpy(change, shapes, independent):
    arrays = [np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + number for number, shape in enumerate(shapes)]
    made = change.apply(arrays)
    assert made.dtype == np.float32
    np.testing.assert_array_equal(made, independent(*arrays))
    assert change.find_shape(shapes) == made.shape


@pytest.mark.parametrize(
    ("change", "shapes", "message"),
    [
        (Derivation(part=0, parts=3), [(2, 4)], "cannot be cut into 3 equal parts"),
        (Derivation(part=0, parts=2, groups=3), [(2, 8)], "in 3 groups"),
        (Derivation(part=0, parts=2), [()], "no axis -1"),
        (Derivation(part=0, parts=2, axis=2), [(4, 4)], "no axis 2"),
        (Derivation(parts=2), [(2, 3), (3, 4)], "do not fit together"),
        (Derivation(parts=2), [(2, 3), (2, 2, 3)], "do not fit together"),
        (Derivation(permute=(1, 0)), [(2, 3, 4)], "no order of its 3 axes"),
        (Derivation(slices="[0, 0, 0]"), [(2, 3)], "no index"),
        (Derivation(slices="[9]"), [(2, 3)], "no index"),
        (Derivation(padding=0.0, padded=(2, 2)), [(2, 3)], "cannot be filled up"),
        (Derivation(slices="[0]"), [(2**40, 2**40)], "too big|too large|maximum"),
    ],
)
def test_changes_that_do_not_fit_say_why(change, shapes, message):
    with pytest.raises(ValueError, match=message):
        change.find_shape(shapes)
