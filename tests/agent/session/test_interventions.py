"""Interventions change the chosen calls and nothing else, and leave nothing behind."""

import mpmath
import pytest
import torch
from torch import nn

from precflow.agent.failures import AgentError
from precflow.agent.request import ArmChange
from precflow.agent.session.interventions import Interventions
from precflow.agent.session.written_out import DEFINITIONS

functional = nn.functional


class Twice(nn.Module):
    """Two norms in one module, one below, and a masked attention."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16, eps=0.1)
        self.project = nn.Linear(16, 16)

    def forward(self, values):
        first = functional.layer_norm(values, (16,), None, None, 0.5)
        second = functional.layer_norm(first * 0.01, (16,), None, None, 0.5)
        return self.project(self.norm(second))


def outputs_of(model, values, *changes):
    seen = {}
    hooks = [
        module.register_forward_hook(lambda *given, name=name: seen.update({name: given[-1]}))
        for name, module in model.named_modules()
    ]
    interventions = Interventions(model, changes)
    with torch.no_grad(), interventions:
        model(values)
    for hook in hooks:
        hook.remove()
    return seen, interventions


@pytest.fixture
def model():
    torch.manual_seed(3)
    return Twice()


@pytest.fixture
def values():
    return torch.randn(5, 16, generator=torch.Generator().manual_seed(4))


NORM = "norm/layer_norm.0/forward.output.0"
SECOND = "(model)/layer_norm.1/forward.output.0"


def test_an_argument_of_one_call_is_replaced_by_its_parameter_name(model, values):
    change = ArmChange("arguments", {SECOND: {"eps": "1e-05"}}, (SECOND,))
    seen, interventions = outputs_of(model, values, change)
    first = functional.layer_norm(values, (16,), None, None, 0.5)
    second = functional.layer_norm(first * 0.01, (16,), None, None, 1e-5)
    torch.testing.assert_close(seen["norm"], model.norm(second))
    assert interventions.changed == 1


def test_a_module_s_record_changes_every_operator_inside_it_and_no_other(model, values):
    before, _ = outputs_of(model.bfloat16(), values.bfloat16())
    seen, interventions = outputs_of(model, values.bfloat16(), ArmChange("dtype", "float32", ("norm/forward.output.0",)))
    assert interventions.changed == 1
    assert seen["norm"].dtype == torch.bfloat16
    exact = functional.layer_norm(
        functional.layer_norm(
            functional.layer_norm(values.bfloat16(), (16,), None, None, 0.5) * 0.01, (16,), None, None, 0.5
        ).float(),
        (16,),
        model.norm.weight.float(),
        model.norm.bias.float(),
        0.1,
    )
    assert torch.equal(seen["norm"], exact.to(torch.bfloat16))
    assert before["norm"].shape == seen["norm"].shape


@pytest.mark.parametrize("name", ["layer_norm", "softmax", "log_softmax", "gelu", "sigmoid", "silu", "group_norm"])
def test_definitions_are_what_torch_computes(name):
    values = torch.randn(3, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 4
    weight = torch.linspace(0.5, 2, 6, dtype=torch.float64)
    given = {
        "layer_norm": ((6,), weight, weight - 1, 1e-3),
        "group_norm": (2, weight[:4], weight[:4], 1e-3),
        "softmax": (1,),
        "log_softmax": (-1,),
    }.get(name, ())
    expected = getattr(functional, name)(values, *given)
    torch.testing.assert_close(DEFINITIONS[name](values, *given), expected, rtol=1e-13, atol=1e-13)


def test_gelu_by_tanh_is_its_own_definition():
    values = torch.linspace(-5, 5, 101, dtype=torch.float64)
    expected = functional.gelu(values, approximate="tanh")
    torch.testing.assert_close(DEFINITIONS["gelu"](values, "tanh"), expected, rtol=1e-13, atol=1e-13)


def test_gelu_does_not_cancel_where_it_goes_to_0():
    (value,) = DEFINITIONS["gelu"](torch.tensor([-8.0], dtype=torch.float64))
    with mpmath.workdps(40):
        expected = -4 * mpmath.erfc(8 / mpmath.sqrt(2))
    assert float(value) == pytest.approx(float(expected), rel=1e-13)


def test_written_out_in_16_bits_is_computed_in_float32_and_rounded_once(model, values):
    model = model.bfloat16()
    seen, _ = outputs_of(model, values.bfloat16(), ArmChange("operator", "written_out", (NORM,)))
    float32, _ = outputs_of(model, values.bfloat16(), ArmChange("dtype", "float32", (NORM,)))
    assert seen["norm"].dtype == torch.bfloat16
    assert (seen["norm"] != float32["norm"]).float().mean() < 0.02  # where the two round a tie otherwise


def test_an_operator_without_a_definition_says_so(model, values):
    with pytest.raises(AgentError, match="no definition of linear is written out"):
        outputs_of(model, values, ArmChange("operator", "written_out", ("project/linear.0/forward.output.0",)))


def test_results_of_operators_in_place_reach_the_tensors_that_they_write_to():
    class InPlace(nn.Module):
        def forward(self, values):
            hidden = values.clone()
            hidden.add_(1e-3)
            return hidden

    one = torch.ones(4, dtype=torch.bfloat16)
    seen, _ = outputs_of(InPlace(), one, ArmChange("dtype", "float32", ("(model)/add_.0/forward.output.0",)))
    assert torch.equal(seen[""], (one.float() + 1e-3).bfloat16())


def test_running_statistics_of_a_batch_norm_are_kept_in_their_own_type():
    model = nn.BatchNorm1d(4).to(torch.bfloat16).train()
    values = torch.randn(32, 4).bfloat16()
    outputs_of(model, values, ArmChange("dtype", "float32", ("(model)/batch_norm.0/forward.output.0",)))
    assert model.running_mean.dtype == torch.bfloat16
    assert model.running_mean.abs().sum() > 0


def test_aten_operators_are_changed_below_autograd(model, values):
    class Only(nn.Module):
        def forward(self, values):
            return values.softmax(-1)

    values = values.bfloat16()
    seen, interventions = outputs_of(
        Only(), values, ArmChange("dtype", "float32", ("(model)/aten.softmax.0/forward.output.0",))
    )
    assert interventions.changed == 1
    assert torch.equal(seen[""], values.float().softmax(-1).bfloat16())


def test_gradients_flow_through_a_changed_call(model, values):
    model = model.bfloat16()
    with Interventions(model, [ArmChange("dtype", "float32", (NORM,))]):
        model(values.bfloat16()).sum().backward()
    assert model.norm.weight.grad.dtype == torch.bfloat16
    assert model.norm.weight.grad.abs().sum() > 0


@pytest.mark.parametrize(("kind", "value"), [("layout", "contiguous"), ("padded_to", 16), ("device", "cpu")])
def test_layout_padding_and_place_leave_values_as_they_are(model, values, kind, value):
    before, _ = outputs_of(model, values)
    seen, interventions = outputs_of(model, values, ArmChange(kind, value, ("project/linear.0/forward.output.0",)))
    assert interventions.changed == 1
    torch.testing.assert_close(seen["project"], before["project"], rtol=1e-6, atol=1e-6)


def test_padding_reaches_the_kernel_and_is_cut_off_again(model, values):
    shapes = []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if getattr(func, "__name__", "") == "linear":
                shapes.append(tuple(args[0].shape))
            return func(*args, **(kwargs or {}))

    with Watch():
        seen, _ = outputs_of(model, values, ArmChange("padded_to", 16, ("project/linear.0/forward.output.0",)))
    assert shapes == [(16, 16)]
    assert seen["project"].shape == (5, 16)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda x: functional.linear(x, torch.ones(7, 16), None), "linear"),
        (lambda x: torch.addmm(torch.ones(7), x, torch.ones(16, 7)), "addmm"),
        (lambda x: torch.addmm(torch.ones(5, 7), x, torch.ones(16, 7)), "addmm"),
    ],
    ids=["no bias", "one row of bias", "as many rows"],
)
def test_padding_leaves_the_bias_as_it_is(values, call, name):
    class Product(nn.Module):
        def forward(self, values):
            return call(values)

    seen, interventions = outputs_of(Product(), values, ArmChange("padded_to", 16, (f"(model)/{name}.0/forward.output.0",)))
    assert interventions.changed == 1
    torch.testing.assert_close(seen[""], call(values))


@pytest.mark.parametrize(("value", "dtype"), [("additive", torch.float32), ("boolean", torch.bool)])
def test_a_mask_is_converted_and_masks_the_same(value, dtype):
    kinds = []

    class Attention(nn.Module):
        def forward(self, query, mask):
            return functional.scaled_dot_product_attention(query, query, query, attn_mask=mask)

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if getattr(func, "__name__", "") == "scaled_dot_product_attention":
                kinds.append(kwargs["attn_mask"].dtype)
            return func(*args, **(kwargs or {}))

    query = torch.randn(1, 2, 5, 8)
    mask = torch.ones(5, 5).tril().bool()
    given = mask if value == "additive" else torch.zeros(5, 5).masked_fill(~mask, torch.finfo(torch.float32).min)
    plain = Attention()(query, given)
    change = ArmChange("mask", value, ("(model)/scaled_dot_product_attention.0/forward.output.0",))
    with Watch(), Interventions(model := Attention(), [change]):
        torch.testing.assert_close(model(query, given), plain)
    assert kinds == [dtype]


def test_switches_are_put_back(model):
    before = torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.allow_tf32
    try:
        torch.set_float32_matmul_precision("high")
        with Interventions(model, [ArmChange("switches", ["full_precision", "deterministic"], ())]):
            assert torch.get_float32_matmul_precision() == "highest"
            assert torch.are_deterministic_algorithms_enabled()
            assert not torch.backends.cudnn.allow_tf32
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before[0])
    assert torch.are_deterministic_algorithms_enabled() == before[1]
    assert torch.backends.cudnn.allow_tf32 == before[2]


def test_attention_of_transformers_is_computed_eagerly_and_put_back(model):
    class Config:
        _attn_implementation = "sdpa"

    model.config = Config()
    with Interventions(model, [ArmChange("attention", "eager", ())]):
        assert model.config._attn_implementation == "eager"
    assert model.config._attn_implementation == "sdpa"


def test_a_model_without_such_a_configuration_says_so(model):
    with (
        pytest.raises(AgentError, match="no module has a configuration"),
        Interventions(model, [ArmChange("attention", "eager", ())]),
    ):
        pass


def test_a_model_whose_attention_is_eager_already_says_so(model):
    model.config = type("Config", (), {"_attn_implementation": "eager"})()
    with (
        pytest.raises(AgentError, match="in single operators already"),
        Interventions(model, [ArmChange("attention", "eager", ())]),
    ):
        pass


def test_calls_that_never_ran_are_an_error_and_hooks_are_gone(model, values):
    _, interventions = outputs_of(model, values, ArmChange("dtype", "float64", ("norm/gelu.0/forward.output.0",)))
    with pytest.raises(AgentError, match="none of its calls ran"):
        interventions.check_acted()
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("change", "rows"),
    [(ArmChange("dtype", "float32", (NORM,)), 5), (ArmChange("padded_to", 16, ("project/linear.0/forward.output.0",)), 16)],
)
def test_a_change_that_finds_everything_as_it_would_have_it_proves_nothing(model, change, rows):
    _, interventions = outputs_of(model, torch.ones(rows, 16), change)
    assert interventions.changed == 0
    with pytest.raises(AgentError, match="nothing in its calls that it would change"):
        interventions.check_acted()


def test_a_mask_of_the_wanted_kind_is_no_change():
    class Masked(nn.Module):
        def forward(self, values):
            return functional.scaled_dot_product_attention(values, values, values, attn_mask=torch.zeros(5, 5))

    record = "(model)/scaled_dot_product_attention.0/forward.output.0"
    model, values = Masked(), torch.randn(1, 5, 16)
    assert outputs_of(model, values, ArmChange("mask", "additive", (record,)))[1].changed == 0
    assert outputs_of(model, values, ArmChange("mask", "boolean", (record,)))[1].changed == 1


def test_each_step_counts_its_calls_anew(model, values):
    change = ArmChange("arguments", {SECOND: {"eps": "1e-05"}}, (SECOND,))
    interventions = Interventions(model, [change])
    with torch.no_grad():
        results = []
        for _ in range(2):
            with interventions:
                results.append(model(values))
    assert torch.equal(*results)
    assert interventions.changed == 2
