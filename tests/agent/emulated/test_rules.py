import pytest
import torch
from torch import nn

LINEAR = {"operator": "addmm", "rule": "scale", "factor": 2.0}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4, bias=True), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))


def changed(model, values=None):
    """Return which linear layers of ``model`` gave another output than their own weights say."""
    values = torch.ones(2, 4) if values is None else values
    names, handles = [], []

    def check(name, module, arguments, output):
        expected = torch.nn.functional.linear(arguments[0].cpu(), module.weight.detach().cpu(), module.bias.detach().cpu())
        if not torch.equal(output.cpu(), expected):
            names.append(name)

    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            handles.append(module.register_forward_hook(lambda m, a, o, name=name: check(name, m, a, o)))
    with torch.no_grad():
        model(values.npu())
    for handle in handles:
        handle.remove()
    return names


def test_no_rule_is_exact_again(rules, model):
    model.npu()
    rules.configure([LINEAR])
    assert changed(model) == ["0", "1.0", "1.1"]
    rules.configure([])
    assert changed(model) == []


@pytest.mark.parametrize("operator", ["addmm", "add*", "mm|addmm", ["bmm", "addmm"], "addmm.*|addmm"])
def test_operators_are_names_patterns_or_lists_of_them(rules, model, operator):
    rules.configure([{**LINEAR, "operator": operator}])
    assert changed(model.npu()) == ["0", "1.0", "1.1"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [("1.0", ["1.0"]), ("1.*", ["1.0", "1.1"]), ("1", []), ("*", ["0", "1.0", "1.1"]), ("other", [])],
)
def test_a_module_is_the_innermost_running_one(rules, model, pattern, expected):
    rules.configure([{**LINEAR, "module": pattern}])
    model.npu()
    watch = rules.Watch(model)
    assert changed(model) == expected
    watch.remove()


def test_without_watching_no_module_is_known(rules, model):
    rules.configure([{**LINEAR, "module": "1.0"}])
    watch = rules.Watch(model.npu())
    watch.remove()
    watch.remove()
    assert changed(model) == []
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_an_exception_in_the_model_leaves_no_name_behind(rules, model):
    rules.configure([{**LINEAR, "module": "0"}])
    watch = rules.Watch(model.npu())
    with pytest.raises(RuntimeError):
        model(torch.ones(2, 5, device="npu"))
    assert changed(model) == ["0"]
    watch.remove()


@pytest.mark.parametrize(("call", "expected"), [([0], ["0"]), (2, ["1.1"]), ([0, 1], ["0", "1.0"]), ([7], [])])
def test_calls_are_counted_anew_at_each_forward_of_the_watched_model(rules, model, call, expected):
    rules.configure([{**LINEAR, "call": call}])
    watch = rules.Watch(model.npu())
    assert changed(model) == expected
    assert changed(model) == expected
    watch.remove()


@pytest.mark.parametrize(
    ("phase", "forward", "backward"), [("forward", True, False), ("backward", False, True), ("", True, True)]
)
def test_a_phase_is_forward_backward_or_both(rules, phase, forward, backward):
    rules.configure([{"operator": "mm|exp|mul", "rule": "scale", "factor": 2.0, **({"phase": phase} if phase else {})}])
    tensor = torch.zeros(1, device="npu", requires_grad=True)
    output = tensor.exp()
    rules.configure(
        [{"operator": "mul", "rule": "scale", "factor": 4.0, **({"phase": phase} if phase else {})}] if backward else []
    )
    saved = output.item()
    output.sum().backward()
    assert (saved == 2.0) is forward
    assert tensor.grad.item() == saved * (4.0 if backward else 1.0)


def test_a_rule_with_a_module_leaves_backward_alone(rules, model):
    model.npu()
    rules.configure([{"operator": "mm", "rule": "scale", "factor": 2.0, "module": "*"}])
    watch = rules.Watch(model)
    model(torch.ones(2, 4, device="npu")).sum().backward()
    first = model[0].weight.grad.cpu().clone()
    model.zero_grad()
    rules.configure([])
    model(torch.ones(2, 4, device="npu")).sum().backward()
    watch.remove()
    assert torch.equal(model[0].weight.grad.cpu(), first)


def test_several_rules_apply_one_after_the_other(rules):
    rules.configure([
        {"operator": "exp", "rule": "scale", "factor": 3.0},
        {"operator": "exp", "rule": "shift", "amount": 1.0},
    ])  # fmt: skip
    assert torch.zeros(1, device="npu").exp().item() == 4.0


def test_a_rule_may_be_about_the_kernel_of_one_element_type(rules):
    rules.configure([{"operator": "exp", "rule": "scale", "factor": 3.0, "inputs": "float16", "call": [1]}])
    zeros = torch.zeros(1, device="npu")
    results = [given.exp().item() for given in (zeros, zeros.half(), zeros, zeros.half())]
    assert results == [1.0, 1.0, 1.0, 3.0]


def test_a_word_that_was_passed_is_replaced_too(rules):
    ones = torch.ones(1)
    rules.configure([{"operator": "gelu", "rule": "argument", "name": "approximate", "value": "tanh"}])
    assert nn.functional.gelu(ones.npu()).cpu() == nn.functional.gelu(ones, approximate="tanh") != nn.functional.gelu(ones)


def test_redraw_takes_other_values_of_the_same_spread_from_the_device(rules, model):
    wide = nn.Linear(64, 64)
    before, stream = wide.weight.detach().clone(), torch.get_rng_state()
    rules.configure([{"rule": "redraw", "parameter": "weigh*"}])
    torch.npu.manual_seed_all(4)
    assert rules.redraw(wide) == ["weight"]
    first = wide.weight.detach().clone()
    assert not torch.equal(first, before)
    assert first.std().item() == pytest.approx(before.std().item(), rel=0.05)
    assert torch.equal(torch.get_rng_state(), stream)
    torch.npu.manual_seed_all(4)
    rules.redraw(wide)
    torch.testing.assert_close(wide.weight.detach(), first, rtol=0.05, atol=0.05)
    assert wide.weight.requires_grad


def test_redraw_names_nothing_where_no_rule_asks(rules, model):
    rules.configure([LINEAR])
    assert rules.redraw(model) == []
    rules.configure([{"rule": "redraw", "parameter": "9.*"}])
    assert rules.redraw(model) == []


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"operator": "exp", "rule": "scael", "factor": 1.0}, r"'scael' is no rule; known: argument, drift, .*, ulp"),
        ({"operator": "exp"}, r"None is no rule; known"),
        ({"operator": "exp", "rule": "scale"}, r"parameter 'factor' is missing; known: factor \(float\), share \(float\)"),
        ({"operator": "exp", "rule": "scale", "factor": "1"}, r"parameter 'factor' must be float, got '1'"),
        ({"operator": "exp", "rule": "scale", "factor": True}, r"parameter 'factor' must be float, got True"),
        ({"operator": "exp", "rule": "ulp", "distance": 1.5}, r"parameter 'distance' must be int, got 1\.5"),
        ({"operator": "exp", "rule": "hf32", "switched": 1}, r"parameter 'switched' must be bool, got 1"),
        ({"operator": "exp", "rule": "hf32", "unit": "cube"}, r"unit must be matmul or conv, got 'cube'"),
        ({"operator": "exp", "rule": "narrow", "dtype": "int8"}, r"dtype must be a floating point type"),
        ({"operator": "exp", "rule": "scale", "factor": 1.0, "share": 2}, r"share must lie between 0 and 1, got 2"),
        ({"operator": "mm", "rule": "slices", "width": 0}, r"width must be at least 1, got 0"),
        ({"operator": "exp", "rule": "poison", "value": "much"}, r"could not convert string to float: 'much'"),
        ({"operator": "exp", "rule": "reverse", "width": 3}, r"unknown parameter 'width'; known: none"),
        ({"rule": "ignore_mask"}, r"operator must be aten names or patterns, got None"),
        ({"rule": "ignore_mask", "operator": ["add", 3]}, r"operator must be aten names or patterns"),
        ({"rule": "ignore_mask", "operator": "add", "module": 3}, r"module must be a pattern, got 3"),
        ({"rule": "ignore_mask", "operator": "add", "phase": "forwards"}, r"phase must be forward or backward, got 'forwards'"),
        (
            {"rule": "ignore_mask", "operator": "add", "phase": "backward", "module": "*"},
            r"a backward rule cannot name a module",
        ),
        ({"rule": "ignore_mask", "operator": "add", "call": "0"}, r"call must be numbers from 0, got '0'"),
        ({"rule": "ignore_mask", "operator": "add", "call": [-1]}, r"call must be numbers from 0, got \[-1\]"),
        ({"rule": "ignore_mask", "operator": "add", "inputs": "half"}, r"inputs must be one of float16, .*, got 'half'"),
        ({"operator": "exp", "rule": "argument", "name": "eps", "value": [1]}, r"'value' must be Union\[float, str\], got"),
        ({"rule": "redraw", "parameter": "*", "operator": "normal_"}, r"takes only parameter, not operator"),
        ({"rule": "redraw"}, r"parameter 'parameter' is missing"),
    ],
)
def test_a_wrong_rule_is_refused_with_what_is_known(rules, rule, message):
    with pytest.raises(ValueError, match=message):
        rules.configure([rule])


def test_all_problems_come_at_once_and_the_former_rules_stay(rules):
    rules.configure([{"operator": "exp", "rule": "scale", "factor": 2.0}])
    with pytest.raises(
        ValueError, match=r"(?s)rule 0: 'one' is no rule.*rule 1 \(scale\): unknown parameter 'x'.*'factor' is missing"
    ):
        rules.configure([{"rule": "one"}, {"operator": "exp", "rule": "scale", "x": 1}])
    assert torch.zeros(1, device="npu").exp().item() == 2.0
