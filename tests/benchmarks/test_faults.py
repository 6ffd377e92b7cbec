"""The benchmark of known faults: its truth does not come from precflow, so it is checked here against known numbers."""

import argparse
import hashlib
import itertools
import json
import math
import random
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch.nn import functional

import precflow
from benchmarks.faults import __main__ as bench
from benchmarks.faults import cases, chips, document, effect, faults, hosts, margins, running, score, tables
from benchmarks.faults.calls import Call, CallName, Calls
from benchmarks.faults.hosts import HOSTS, Host
from precflow.dumps.formats import read_dump


class Small(torch.nn.Module):
    """A linear layer, a norm, an activation and an attention, a tenth of a second to record."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(48, 48), torch.nn.LayerNorm(48), torch.nn.Linear(48, 8)

    def forward(self, values):
        hidden = functional.gelu(self.norm(self.first(values)))
        weights = functional.softmax(hidden @ hidden.mT / 7, -1)
        return self.last(weights @ hidden + 2 * hidden)


def draw(*sizes, seed=0):
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def small(monkeypatch):
    """Add the small model to the hosts."""
    host = Host("small", lambda _: Small(), lambda dtype: {"values": draw(2, 40, 48).to(dtype)}, lambda made: made)
    monkeypatch.setitem(HOSTS, "small", host)
    cases.sites_of.cache_clear()
    return host


def test_calls_have_the_names_that_a_dump_gives_them(small, tmp_path):
    model = small.make(torch.float32)
    seen = []
    with Calls(model, watch=lambda name, *_: seen.append(name)), precflow.capture(model, tmp_path, level=["api"]):
        small.run(model, small.inputs(torch.float32), backward=False)
    recorded = [
        CallName(call.module, call.call, call.operator, call.ordinal) for call in read_dump(tmp_path).calls() if call.operator
    ]
    assert len(recorded) > 9
    assert set(recorded) <= set(seen)


@pytest.mark.parametrize("part", chips.PARTS)
def test_an_empty_product_is_zeros_on_every_chip(part):
    """The gradient of the weights of an expert that no token went to is one."""
    none = torch.zeros(0, 4, dtype=torch.bfloat16)
    with chips.Chip((part,)):
        made = (none.T @ none, none.T[None] @ none[None], torch.addmm(torch.ones(4, dtype=none.dtype), none.T, none))
    assert [each.tolist() for each in made] == [[[0.0] * 4] * 4, [[[0.0] * 4] * 4], [[1.0] * 4] * 4]
    assert {each.dtype for each in made} == {torch.bfloat16}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("part", chips.PARTS)
def test_a_chip_is_right_and_rounds_otherwise(small, part, dtype):
    def gradients(chip):
        model = small.make(dtype)
        with chip:
            loss = small.run(model, small.inputs(dtype), backward=True)
        return torch.cat([loss.detach().view(1), *(weight.grad.flatten() for weight in model.parameters())]).double()

    plain, other = gradients(chips.Chip(())), gradients(chips.Chip((part,), seed=3))
    error = (other - plain).norm() / plain.norm()
    assert error < {torch.float32: 3e-6, torch.bfloat16: 8e-2, torch.float16: 5e-3}[dtype]
    elsewhere = dtype != torch.float32 or part in ELSEWHERE  # in 16 bits another order of additions often rounds to the same
    assert error > 0 or elsewhere


def kernels(like, *sizes):
    """Return kernels that every element type can hold."""
    return (draw(16, 32, *sizes, seed=1) * 16).round().to(like) / 256


ELSEWHERE = {
    "winograd",
    "small_tiles",
    "fourier",
    "sigmoid_by_tanh",
    "split_sums",
}  # parts whose operators the small model lacks
WIDE = torch.linspace(-12, 12, 4001)
UNIT = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12}  # half a unit in the last place below 1
ALGORITHMS = {  # operator, its first input, and by how many units its results may be off, of 1 and in 16 bits of themselves
    "winograd": (lambda x: functional.conv2d(x, kernels(x, 3, 3), padding=1), draw(2, 32, 9, 11), 300),
    "small_tiles": (
        lambda x: functional.conv2d(x, kernels(x, 3, 3), padding=(2, 0)),
        draw(2, 32, 9, 11),
        60,
    ),
    "fourier": (lambda x: functional.conv2d(x, kernels(x, 5, 2), padding=2), draw(2, 32, 9, 11), 60),
    "fourier of one channel": (lambda x: functional.conv2d(x, kernels(x, 3, 3)[:, :1]), draw(2, 1, 8, 9), 40),
    "sigmoid_by_tanh": (lambda x: torch.stack([x.sigmoid(), x.tanh(), functional.silu(x) / 12]), WIDE, 3),
    "reciprocals": (lambda x: torch.stack([x / 3.7, x.abs().add(1).rsqrt(), x.softmax(-1)]), WIDE, 20),
    "norms_in_pieces": (
        lambda x: torch.stack([functional.layer_norm(x, (100,)), functional.group_norm(x, 5)]),
        draw(6, 100) * 3 + 1,
        12,
    ),
    "erf_by_polynomial": (functional.gelu, WIDE, 40),
    "split_sums": (lambda x: x.abs().sum(0), draw(40, 30) / 40, 4),
}


@pytest.mark.parametrize("dtype", UNIT)
@pytest.mark.parametrize("part", ALGORITHMS)
def test_another_algorithm_is_right(part, dtype):
    compute, values, units = ALGORITHMS[part]
    values = values.to(dtype)
    exact, plain = compute(values.double()), compute(values)
    for seed in range(4):
        with chips.Chip((part.partition(" ")[0],), seed):
            made = compute(values)
        assert made.dtype == dtype
        assert made.shape == exact.shape
        off = (made.double() - exact).abs() - exact.abs() * (UNIT[dtype] * 4 if dtype != torch.float32 else 0.0)
        assert float(off.max()) < units * UNIT[torch.float32]
    assert not torch.equal(made, plain) or dtype != (torch.bfloat16 if part == "split_sums" else torch.float32)


def test_functions_in_place_are_replaced_too():
    with chips.Chip(("sigmoid_by_tanh",)):
        made = [WIDE.clone().sigmoid_(), WIDE.clone().tanh_()]
        apart = [WIDE.sigmoid(), WIDE.tanh()]
    assert all(map(torch.equal, made, apart))
    assert not torch.equal(made[1], WIDE.tanh())


def test_controls_that_came_later_leave_the_others_as_they_were():
    """Each control takes its hosts by turns, and a page of results says which were run: a new one must not move them."""
    first = [name for name in cases.CONTROLS if name not in cases.LATER]
    planned = cases.controls(first, list(HOSTS), cases.DTYPES, range(3))
    text = "\n".join(f"{case.name} {case.backward} {'+'.join(case.chip)}" for case in planned)
    assert hashlib.blake2b(text.encode(), digest_size=8).hexdigest() == "50d7bf8620f00253"


def test_a_truncating_accumulator_never_rounds_up():
    exact = draw(1000).double() * (1 + 1e-9)
    rounded = chips.toward_zero(exact)
    assert bool((rounded.double().abs() <= exact.abs()).all())
    assert float(((rounded.double() - exact) / exact).abs().max()) < 2**-23


def test_rho_is_the_error_over_that_of_one_rounding():
    call = Call(functional.layer_norm, (draw(64, 96) * 3 + 1, (96,)), {})
    right = effect.measure(call, call.run())
    assert right.rho <= 1
    exact = functional.layer_norm(call.args[0].double(), (96,))
    wrong = effect.measure(call, (exact * (1 + 1e-4)).float())
    assert 1000 < wrong.rho <= 1e-4 / 2**-25 * 1.01
    assert not wrong.matmul


def test_products_are_measured_against_the_sum_of_their_terms():
    left, right = draw(32, 64), draw(64, 32, seed=1)
    left[:, 32:], right[32:] = left[:, :32], -right[:32]  # every sum cancels
    call = Call(torch.matmul, (left, right), {})
    assert effect.measure(call, call.run() + 1e-7).rho < 8
    assert effect.measure(call, call.run() + 1e-3).rho > 128


def test_the_residue_shows_in_bfloat16_what_the_norm_hides():
    call = Call(functional.gelu, (draw(400, 96).bfloat16(),), {})
    other = functional.gelu(call.args[0].float(), approximate="tanh").bfloat16()
    found = effect.measure(call, other)
    assert found.rho < 2
    assert found.residue > 3


def test_a_loss_that_is_off_by_two_units_in_the_last_place_has_no_residue():
    exact, unit = torch.tensor(5.5 + 0.2 * 2**-5, dtype=torch.float64), 2**-5  # of bfloat16 between 4 and 8
    plain, near, far = (torch.tensor(5.5 + steps * unit).bfloat16() for steps in (0, 2, 4))
    assert effect.compare(exact, plain, near, exact, other=plain, matmul=False).residue < 3
    assert effect.compare(exact, plain, far, exact, other=plain, matmul=False).residue > 6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "call",
    [
        Call(functional.gelu, (draw(400, 96) * 4,), {}),
        Call(functional.silu, (draw(400, 96) * 9,), {}),
        Call(torch.tanh, (draw(400, 96) * torch.logspace(-9, 0, 96),), {}),
        Call(functional.linear, (draw(60, 96), draw(40, 96, seed=1)), {}),
        Call(torch.sum, (draw(60, 96), 0), {}),
    ],
)
def test_no_algorithm_of_a_control_does_what_a_fault_has_to_do(call, dtype):
    """A fault that leaves no more than a correct chip cannot be asked for: to find it would be an alarm on that chip."""
    call = effect.map_floats(call, lambda tensor: tensor.to(dtype))
    with chips.Chip(chips.ALTERNATIVES):
        made = call.run()
    # In float16 some change nothing, and on some processors torch's own gelu in bfloat16 has the bits of one of them.
    assert dtype == torch.float16 or call.func is functional.gelu or not torch.equal(made, call.run())
    assert effect.measure(call, made).residue < 1.01


def test_another_order_of_additions_leaves_no_residue_where_terms_cancel():
    left, right = draw(32, 64).bfloat16(), draw(64, 32, seed=1).bfloat16()
    left[:, 32:], right[32:] = left[:, :32], -right[:32] * (1 + 2**-7)
    call = Call(torch.matmul, (left, right), {})
    other = (left.flip(-1).float() @ right.flip(0).float()).bfloat16()
    assert effect.measure(call, other).residue < 3


def test_one_nan_and_another_shape_are_infinitely_wrong():
    call = Call(torch.tanh, (draw(4, 4),), {})
    broken = call.run()
    broken[1, 1] = math.nan
    assert effect.measure(call, broken).rho == math.inf
    assert effect.measure(call, call.run()[:2]).rho == math.inf


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, kind in faults.KINDS.items() if kind.of == "forward"])
def test_every_fault_changes_its_call(name):
    kind = faults.KINDS[name]
    host = next(
        (host for host in ("decoder", "llama", "minilm", "text_encoder") if cases._applies(kind, host, "float32")), None
    )
    if host is None:
        pytest.skip("needs a host with diffusers")
    drawn = cases._draw(kind, host, "float32", random.Random(1))
    case = cases.Case(name, "single", host, "float32", (), 1, backward=False, faults=(drawn,))
    model, inputs = running._prepare(case, {})
    found = {}
    with chips.Chip(()) as chip, Calls(model, running._install(drawn, model, inputs, chip, found)):
        HOSTS[host].run(model, inputs, backward=True)
    assert set(found) == set(drawn.calls)
    assert max(one.rho for one in found.values()) > 1


class Stacked(torch.nn.Module):
    """Two matrices in one parameter, as a mixture of experts has them, and a layer with a weight of its own."""

    def __init__(self):
        super().__init__()
        self.both, self.last = torch.nn.Parameter(draw(2, 12, 12)), torch.nn.Linear(12, 4)

    def forward(self, values):
        return self.last(functional.linear(functional.linear(values, self.both[0]), self.both[1]))


@pytest.fixture
def stacked(monkeypatch):
    """Add the model with two matrices in one parameter to the hosts."""
    host = Host("stacked", lambda _: Stacked(), lambda dtype: {"values": draw(5, 12).to(dtype)}, lambda made: made)
    monkeypatch.setitem(HOSTS, "stacked", host)
    cases.sites_of.cache_clear()
    return host


def _gradients_of(host, fault=None):
    model, inputs = host.make(torch.float32), host.inputs(torch.float32)
    with chips.Chip(()) as chip, Calls(model, running._install(fault, model, inputs, chip, {}) if fault else {}):
        host.run(model, inputs, backward=True)
    return model.both.grad


def test_a_fault_in_the_gradient_of_a_slice_reaches_the_whole_parameter(stacked):
    right = _gradients_of(stacked)
    wrong = _gradients_of(stacked, cases.Fault("weight_gradient_of_fewer_rows", (CallName("", 0, "linear", 1),), 0.25))
    assert bool(right.all())
    assert not wrong[1, -3:].any()
    right[1, -3:] = 0
    assert torch.equal(wrong, right)


def test_another_weight_is_drawn_where_the_first_is_no_parameter(stacked):
    drawn = [cases.make_single(faults.KINDS["one_weight_differs"], "stacked", "float32", seed) for seed in range(9)]
    assert {case.faults[0].calls for case in drawn} == {(CallName("last", 0, "linear", 0),)}


def options(tmp_path, **given):
    whole = {
        "hosts": ["small"],
        "dtypes": ["float32"],
        "seeds": [0],
        "faults": None,
        "controls": None,
        "subset": False,
        "one_type": False,
    }
    return argparse.Namespace(**{**whole, "groups": ["single", "control"], "folder": tmp_path, **given})


def test_a_case_is_found_and_a_control_is_silent(small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = options(tmp_path, faults=["layer_norm_epsilon", "backward_scaled"], controls=["chunk8r+vec2"])
    lines = bench.run_all(bench.plan(asked), tmp_path)
    score.add_scores(lines)
    assert [line["scores"]["precflow"]["hit"] for line in lines] == [True, True, False]
    assert [score.detected(line) for line in lines] == [True, True, False]
    assert lines[0]["faults"][0]["effects"][0]["rho"] > 8
    assert all(line["scores"]["first_digest"]["named"] for line in lines)
    text = bench.write(lines, tmp_path)
    assert "| method, float32 | detected | first name right |" in text
    assert "| precflow | 2/2 | 2/2 |" in text
    assert "| float32 | chunk8r+vec2 | 1 | 0/1 |" in text
    assert (
        "Seed 0:\n\n| | float32 |\n|---|--:|\n| faults that do something (that do nothing) | 2 (0) |\n| detected | 2/2 |"
        in text
    )
    assert "| controls: alarms | 0/1 |" in text
    made = document.make(lines, bench.rules_known())
    page = "".join(
        f"<!-- table: {name} -->\n\n| old |\n| msprobe, measured earlier |\n\nWords.\n" for name in [*made, "seed 9"]
    )
    filled = document.fill(page, made)
    assert f"<!-- table: seed 0 -->\n\n{made['seed 0']}\n| msprobe, measured earlier |\n\nWords.\n" in filled
    assert filled.count("| old |") == 1
    with pytest.raises(ValueError, match="<!-- table: seed 0 -->"):
        document.fill("nothing", made)


def test_a_case_that_crashed_counts_as_a_fault_that_was_not_found(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "run", lambda *_: 1 / 0)
    line = bench.run_safely(cases.by_name("layer_norm_epsilon-lstm-float32-0"), tmp_path, tmp_path)
    assert (line["dtype"], line["group"]) == ("float32", "single")
    text = bench.write([line], tmp_path)
    assert "| float32 | single | 1 | 1 (0) | 0/1 | 0/1 |" in text
    assert "| crashed | 1 |" in text


def test_the_page_has_a_place_for_every_table():
    """Those of a run of seeds 0 to 5, which all crashed, and of controls."""
    about = {"dtype": "float32", "crash": ""}
    lines = [
        {**about, "name": "output_scaled-x", "group": group, "seed": seed, "dtype": dtype}
        for group, seed, dtype in itertools.product(["single", "2 faults", "control"], range(6), cases.DTYPES)
    ]
    made = document.make(lines, frozenset())
    page = (Path(bench.__file__).parents[2] / "docs" / "faults.md").read_text()
    assert {f"seed {seed}" for seed in range(6)} | {"limits moved", "families", "controls"} <= set(made)
    assert document.fill(page, made) != page


def test_a_stopped_run_goes_on_where_it_was(small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    planned = [cases.Case(f"case-{number}", "control", "small", "float32", (), 0, backward=False) for number in range(3)]
    ran = []
    monkeypatch.setattr(bench, "run", lambda case, *_: ran.append(case.name) or {"name": case.name, "group": "control"})
    monkeypatch.setattr(bench, "summary", lambda line: line["name"])
    (tmp_path / "results.jsonl").write_text(json.dumps({"name": "case-0", "group": "control"}) + '\n{"name": "case-1", "gr')
    assert [line["name"] for line in bench.run_all(planned, tmp_path)] == ["case-0", "case-1", "case-2"]
    assert ran == ["case-1", "case-2"]
    assert [line["name"] for line in bench.read(tmp_path / "results.jsonl")] == ["case-0", "case-1", "case-2"]


# Faults whose like `tests/end_to_end/test_faults.py` plants, and controls between the two others; the benchmark itself has all.
LEFT_OUT = {"tf32_all", "mask_off_by_one", "layer_norm_epsilon", "output_scaled", "k16_trunc", "float64"}


@pytest.mark.slow
def test_the_subset_finds_every_fault_and_nothing_else(tmp_path, monkeypatch):
    """Kinds and controls of it, and two faults at once, in the cheapest host: each has noise floors of its own to measure."""
    monkeypatch.chdir(tmp_path)
    whole = {"subset": True, "dtypes": None, "seeds": None, "groups": ["single", "several", "control"]}
    planned = bench.plan(options(tmp_path, **whole, hosts=["text_encoder"]))
    assert {fault.kind for case in planned for fault in case.faults} >= set(bench.SUBSET_FAULTS) - {"gelu_of_other_form"}
    assert len([case for case in planned if case.group == "control"]) == len(bench.SUBSET_CONTROLS) - 1  # no fused norm there
    assert len([case for case in planned if len(case.faults) == 2]) == 1
    chosen = [case for case in planned if len(case.faults) == 2 or not LEFT_OUT & set(case.name.split("-"))]
    assert len(chosen) == 6
    lines = bench.run_all(chosen, tmp_path)
    assert not [line["crash"] for line in lines if "crash" in line]
    score.add_scores(lines)
    faulty, clean = ([line for line in lines if (line["group"] == "control") == control] for control in (False, True))
    assert not [line["name"] for line in faulty if score.band(line) == "strong" and not score.detected(line)]
    assert not [line["name"] for line in clean if score.detected(line)]
    located = [line["scores"]["precflow"] for line in faulty if line["scores"]["precflow"]["located"]]
    assert sum(one["hit"] for one in located) >= 0.9 * len(located)
    assert sum(one["recalled"] for one in located) >= 0.9 * sum(one["faults"] for one in located)
    assert "| float32 | single |" in bench.write(lines, tmp_path)
    assert margins.draw(lines).count("<circle") >= len(clean)


def test_the_subset_has_three_hosts_and_pairs():
    planned = bench.plan(
        options(None, subset=True, hosts=None, dtypes=None, seeds=None, groups=["single", "several", "control"])
    )
    assert {case.host for case in planned} == set(bench.SUBSET_HOSTS)
    assert len([case for case in planned if len(case.faults) == 2]) == 3
    assert all(case.chip in chips.BACKGROUNDS for case in planned if case.faults)
    assert len({case.name for case in planned}) == len(planned)


def test_one_type_runs_each_kind_and_seed_once_and_leaves_no_type_out():
    asked = options(None, hosts=None, dtypes=None, seeds=range(1, 10), groups=["control"], one_type=True)
    planned = bench.plan(asked)
    fitting = [
        control for control in cases.CONTROLS.values() if not control.hosts or set(control.hosts) & set(hosts.available())
    ]
    assert len({(case.name.rsplit("-", 3)[0], case.seed) for case in planned}) == len(planned) == 9 * len(fitting)
    assert min(Counter(case.dtype for case in planned).values()) > len(planned) / 4
    assert {case.host for case in planned} == set(hosts.available())
    assert bench.plan(asked) == planned


def test_a_case_can_be_drawn_again_by_its_name():
    planned = bench.plan(
        options(None, subset=True, hosts=None, dtypes=None, seeds=None, groups=["single", "several", "control"])
    )
    assert [cases.by_name(case.name) for case in planned] == planned


@pytest.mark.parametrize(
    "name", ["nothing", "tf32_all-nowhere-float32-0", "rope_sign_lost-lstm-float32-0", "control-x-lstm-float32-0"]
)
def test_a_name_that_fits_nothing_is_refused_with_what_is_expected(name):
    with pytest.raises(ValueError, match="expected FAULT-HOST-TYPE-SEED"):
        cases.by_name(name)


FAULT = {"kind": "output_scaled", "calls": [["a", 0, "linear", 0]], "effects": [{"rho": 300.0, "residue": 1.0, "matmul": True}]}
LINE = {"group": "single", "dtype": "float32", "faults": [FAULT]}


@pytest.mark.parametrize(("rho", "band"), [(30, "none"), (80, "weak"), (200, "strong")])
def test_faults_without_effect_leave_the_count_by_a_rule(rho, band):
    effects = [{"rho": rho, "residue": 1.0, "matmul": True}]
    assert score.band({**LINE, "faults": [{**FAULT, "effects": effects}]}) == band


def test_a_fault_without_effect_is_not_to_be_found_beside_one_that_acts():
    idle = {**FAULT, "calls": [["b", 0, "linear", 0]], "effects": [{"rho": 3.0, "residue": 1.0, "matmul": True}]}
    line = {**LINE, "faults": [FAULT, idle]}
    assert score.band(line) == "strong"
    assert score.score(line, [["a", 0, "linear", 0, "forward"]])["faults"] == 1


def test_a_hit_is_the_operator_and_its_ordinal():
    assert score.score(LINE, [["a", 0, "linear", 0, "forward"], ["b", 0, "add", 0, "forward"]])["hit"]
    other = score.score(LINE, [["a", 0, "linear", 1, "forward"]])
    assert (other["hit"], other["module"], other["true"], other["recalled"]) == (False, True, 0, 0)


@pytest.mark.parametrize(("kind", "true"), [("output_scaled", 2), ("row_scaled", 1)])
def test_the_backward_of_a_wrong_call_is_a_true_name_where_its_gradients_are_wrong_and_never_a_hit(kind, true):
    line = {**LINE, "faults": [{**FAULT, "kind": kind}]}
    call, backward = ["a", 0, "linear", 0, "forward"], ["a", 0, "", 0, "backward"]
    found = score.score(line, [call, backward])
    assert (found["hit"], found["true"], found["recalled"]) == (True, true, 1)
    alone = score.score(line, [backward])
    assert (alone["hit"], alone["recalled"]) == (False, 0)


def _gradients(call, wrong):
    values = [value.detach().clone().requires_grad_() for value in call.args]
    kind = faults.KINDS.get(wrong)
    run = Call(call.func, tuple(values), call.kwargs)
    made = kind.change(run, 0.5 if wrong == "output_scaled" else 2) if kind else run.run()
    return torch.autograd.grad(made, values, draw(*made.shape, seed=9), allow_unused=True)


LINEAR = Call(functional.linear, (draw(5, 32), draw(24, 32, seed=1)), {})
SOFTMAX = Call(functional.softmax, (draw(6, 6),), {"dim": -1})
PRODUCT = Call(torch.mul, (draw(5, 32), draw(32, seed=1)), {})


@pytest.mark.parametrize(
    ("name", "call"),
    [
        *[(name, LINEAR) for name in "accumulator_in_bfloat16 row_scaled element_wrong rows_swapped tail_not_computed".split()],
        *[(name, LINEAR) for name in "tf32_one operator_in_bfloat16 output_scaled terms_not_added".split()],
        *[(name, SOFTMAX) for name in "attention_uniform softmax_over_queries softmax_in_bfloat16 keys_cut_off".split()],
        ("norm_weight_in_bfloat16", PRODUCT),
        ("embedding_in_bfloat16", PRODUCT),
    ],
)
def test_a_fault_says_whether_its_gradients_are_those_of_the_right_call(name, call):
    both = zip(_gradients(call, ""), _gradients(call, name), strict=True)
    kept = all(torch.allclose(right, wrong, rtol=1e-5, atol=1e-6) for right, wrong in both)
    assert kept == faults.KINDS[name].keeps_gradients


@pytest.mark.parametrize(
    ("findings", "first", "unknown", "sure"),
    [
        ([["PF211", "certain", ""]], True, False, False),
        ([["PF299", "possible", ""]], False, True, False),
        ([["PF102", "likely", ""]], False, False, True),
        ([["PF102", "possible", ""]], False, False, False),
    ],
)
def test_a_wrong_cause_counts_when_it_is_sure(findings, first, unknown, sure):
    cause = score.judge_cause({**LINE, "said": {"findings": findings}}, frozenset({"PF211", "PF102", "PF299"}))
    assert (cause["first"], cause["unknown"], cause["wrong_and_sure"]) == (first, unknown, sure)


def test_the_table_says_how_many_faults_are_found_in_16_bits_as_well():
    said = {"verdict": "misaligned", "named": [], "findings": [], "ratio": 2.0, "introduced": 0.5, "blind": 0.25}
    silent = {**said, "verdict": "aligned"}
    lines = [{**LINE, "seed": seed, "said": said} for seed in range(3)]
    lines += [{**LINE, "seed": seed, "dtype": "bfloat16", "said": said if seed else silent} for seed in range(4)]
    assert not tables.compare_types(lines[3:])
    assert tables.compare_types(lines) == "bfloat16: found of those that float32 finds: 2/3"
    drawn = margins.draw(lines)
    assert drawn.count("<circle") == 7
    assert "bfloat16, missed" in drawn
    assert "| float32 | faults | 3/3 | 3/3 | 3/3 | 3/3 | 3/3 | 0/3 | 0/3 |" in margins.move_lines(lines)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_members_of_a_class_are_those_at_which_the_fault_does_something(dtype):
    """In 16 bits the residue says so, where rho is small."""
    acts = {"rho": 300.0 if dtype == "float32" else 2.0, "residue": 9.0, "matmul": True}
    calls = [[name, 0, "linear", 0] for name in "abc"]
    fault = {**FAULT, "calls": calls, "effects": [acts, acts, {"rho": 1.0, "residue": 1.0, "matmul": True}]}
    named = [[*call, "forward"] for call in calls[:2]]
    assert score.score({**LINE, "dtype": dtype, "faults": [fault]}, named)["members"] == 1.0


@pytest.mark.parametrize(("text", "numbers"), [("0-3", [0, 1, 2, 3]), ("0,3", [0, 3]), ("1-3,8", [1, 2, 3, 8])])
def test_seeds_are_ranges_and_single_numbers(text: str, numbers: list[int]) -> None:
    assert bench._numbers(text) == numbers
