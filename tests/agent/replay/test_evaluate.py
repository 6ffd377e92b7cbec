"""Evaluating calls that were recorded from real runs: correct ones are small, planted faults are large, and no call ends it."""

import json
import math
import operator

import pytest
import torch
from torch import nn
from torch.nn import functional

from precflow.agent import request as requests
from precflow.agent import worker
from precflow.agent.failures import AgentError
from precflow.agent.replay import computation
from precflow.agent.replay.evaluate import evaluate_call

X, Y = (
    torch.randn(4, 6, generator=torch.Generator().manual_seed(1)),
    torch.randn(6, 5, generator=torch.Generator().manual_seed(2)),
)
IMAGE = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(3))
HEADS = torch.randn(2, 4, 5, 8, generator=torch.Generator().manual_seed(4))
POSITIVE = X.abs() + 0.5
IDS = torch.tensor([[1, 2], [0, 3]])
CLASSES = torch.tensor([1, 0, 3, 2])
MASK = torch.tensor([True, False, True, False, True, True])

OPERATORS = {
    "linear": (lambda: functional.linear(X, Y.t(), torch.ones(5)), "matmul"),
    "matmul": (lambda: X @ Y, "matmul"),
    "einsum": (lambda: torch.einsum("ij,jk->ki", X, Y), "matmul"),
    "addmm": (lambda: torch.addmm(torch.ones(5), X, Y, beta=0.5, alpha=-2.0), "matmul"),
    "baddbmm": (lambda: torch.baddbmm(torch.ones(1, 5, 5), HEADS[0], HEADS[1].transpose(1, 2), alpha=0.3), "matmul"),
    "conv2d": (lambda: functional.conv2d(IMAGE, IMAGE[:, :, :3, :3], padding=1, groups=1), "matmul"),
    "conv1d": (lambda: functional.conv1d(IMAGE[0], IMAGE.flatten()[:24].view(8, 1, 3), padding=1, groups=8), "matmul"),
    "conv_transpose2d": (
        lambda: functional.conv_transpose2d(IMAGE, IMAGE[:1].transpose(0, 1)[..., :2, :2], stride=2),
        "matmul",
    ),
    "softmax": (lambda: functional.softmax(X, dim=-1, dtype=torch.float32), "other"),
    "log_softmax": (lambda: X.log_softmax(1), "other"),
    "layer_norm": (lambda: functional.layer_norm(X, (6,), torch.ones(6), eps=1e-3), "other"),
    "group_norm": (lambda: functional.group_norm(IMAGE, 2, torch.ones(4), torch.zeros(4)), "other"),
    "batch_norm": (lambda: functional.batch_norm(IMAGE, torch.zeros(4), torch.ones(4) * 2, eps=1e-4), "other"),
    "rms_norm": (lambda: functional.rms_norm(X, (6,), torch.ones(6), 1e-6), "other"),
    "gelu": (lambda: functional.gelu(X, approximate="tanh"), "other"),
    "silu": (lambda: functional.silu(X + 0.0), "other"),
    "relu": (lambda: functional.relu(X), "other"),
    "rsqrt": (POSITIVE.rsqrt, "other"),
    "pow": (lambda: POSITIVE**1.7, "other"),
    "add": (lambda: X + 0.1, "sum"),
    "sub": (lambda: 0.1 - X, "sum"),
    "rsub": (lambda: torch.rsub(X, 0.1), "sum"),
    "mul": (lambda: X * 0.1, "other"),
    "div": (lambda: 0.1 / POSITIVE, "other"),
    "addcmul": (lambda: torch.addcmul(X, X, X, value=-0.3), "sum"),
    "lerp": (lambda: torch.lerp(X, POSITIVE, 0.3), "other"),
    "mean": (lambda: X.mean(-1, keepdim=True), "sum"),
    "sum": (lambda: X.sum((0, 1)), "sum"),
    "cumsum": (lambda: X.cumsum(1), "sum"),
    "var": (lambda: X.var(-1, unbiased=False), "other"),
    "norm": (lambda: X.norm(dim=-1), "other"),
    "logsumexp": (lambda: X.logsumexp(-1), "other"),
    "clamp": (lambda: X.clamp(-0.3, 0.3), "other"),
    "cross_entropy": (lambda: functional.cross_entropy(X, CLASSES), "other"),
    "mse_loss": (lambda: functional.mse_loss(X, POSITIVE), "other"),
    "max_pool2d": (lambda: functional.max_pool2d(IMAGE, 2), "other"),
    "avg_pool2d": (lambda: functional.avg_pool2d(IMAGE, 2), "sum"),
    "embedding": (lambda: functional.embedding(IDS, X), "movement"),
    "masked_fill": (lambda: X.masked_fill(MASK, -1e4), "movement"),
    "where": (lambda: torch.where(MASK, X, 0.1), "movement"),
    "getitem": (lambda: (MASK & MASK, X * 1.0, X[:, MASK] * 1.0), "movement"),
    "cat": (lambda: (X * 1.0, torch.cat([X, X], dim=1) * 1.0), "movement"),
    "fft_rfft": (lambda: torch.fft.rfft(X), "other"),
    "scaled_dot_product_attention": (
        lambda: functional.scaled_dot_product_attention(HEADS, HEADS, HEADS, is_causal=True),
        "matmul",
    ),
    "topk": (lambda: X.topk(2), "other"),
    "argmax": (lambda: X.argmax(-1), "other"),
    "gt": (lambda: X > 0.1, "other"),
    "special_erf": (lambda: torch.special.erf(X), "other"),
    "linalg_vector_norm": (lambda: torch.linalg.vector_norm(X, dim=1), "other"),
    "interpolate": (lambda: functional.interpolate(IMAGE, scale_factor=2.0), "movement"),
    "add_": (lambda: X.clone().add_(X, alpha=0.3), "sum"),
}


def rho(found):
    reference, target = found["sides"]["reference"], found["sides"]["target"]
    return target["eta"] / max(reference["eta"], reference["unit"] / 2)


@pytest.mark.parametrize("name", OPERATORS)
def test_what_torch_computes_is_reproduced(dumped, name):
    work, kind = OPERATORS[name]
    found = dumped(lambda _: work()).evaluated(name)
    assert found
    for line in found:
        assert (line["evaluated"], line["why"], line["kind"]) == (True, "", kind)
        for side in line["sides"].values():
            assert side["misplaced"] == 0
            assert side["equal"] if side["eta"] is None or kind == "movement" else side["eta"] < 4 * side["unit"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.complex64])
def test_other_types_are_evaluated_too(dumped, dtype):
    x, y = X.to(dtype), Y.to(dtype)
    (found,) = dumped(lambda _: x @ y).evaluated("matmul")
    side = found["sides"]["target"]
    assert side["dtype"] == str(dtype).removeprefix("torch.")
    assert side["eta"] < 2 * side["unit"]
    assert not side["equal"] or dtype is torch.float64


FAULTS = {
    "gelu": (functional.gelu, lambda x: functional.gelu(x, approximate="tanh")),
    "softmax": (lambda x: x.softmax(-1), lambda x: x.bfloat16().softmax(-1).float()),
    "linear": (
        lambda x: functional.linear(x, Y.t().to(x.dtype)),
        lambda x: functional.linear(x.half().float(), Y.half().float().t()),
    ),
    "layer_norm": (lambda x: functional.layer_norm(x, (6,), eps=1e-5), lambda x: functional.layer_norm(x, (6,), eps=1e-3)),
    "add": (lambda x: x + x, lambda x: torch.cat([(x + x)[:1] * 1.001, (x + x)[1:]])),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_target_is_large_and_a_correct_other_chip_is_not(dumped, name):
    healthy, faulty = FAULTS[name]
    record = dumped(lambda _: healthy(X))
    (call,) = record.calls(name)
    files = computation.TensorFiles()
    output = call.sides["target"].outputs[0]
    for make, least, most in ((lambda: healthy(X.double()).float(), 0, 2), (lambda: faulty(X), 64, math.inf)):
        replaced = _Replacing(files, output, make())
        (found,) = evaluate_call(call, replaced)
        assert found["evaluated"]
        assert least <= rho(found) < most


@pytest.mark.parametrize("compute", [operator.mul, operator.add, operator.truediv])
def test_a_number_that_a_backend_rounds_to_the_type_of_the_tensor_is_no_fault(dumped, compute):
    number = torch.tensor(0.70019531 + 0.000239)  # nearly in the middle between two numbers of float16
    wide = IMAGE.half()
    (call,) = dumped(lambda _: compute(wide, number)).calls(compute.__name__.replace("truediv", "div"))

    def evaluated(output):
        replaced = _Replacing(computation.TensorFiles(), call.sides["target"].outputs[0], output)
        return evaluate_call(call, replaced)[0]["sides"]["target"]

    kept = compute(wide.double(), number.double()).half()
    rounded = compute(wide.double(), number.half().double()).half()
    assert not torch.equal(kept, rounded)
    for output in (kept, rounded):
        assert evaluated(output)["eta"] < 2.0**-11
        assert evaluated(output)["variance"] == pytest.approx(1.0, abs=0.5)
    assert evaluated(rounded * 1.01)["eta"] > 2.0**-8


class _Replacing:
    """Reads tensors from files, but for one in whose place another is given: as if the target had computed it."""

    def __init__(self, files, stored, tensor):
        self._files, self._stored, self._tensor = files, stored, tensor

    def read(self, stored):
        return self._tensor if stored is self._stored else self._files.read(stored)


def test_arguments_are_those_of_the_reference(dumped):
    """The target was called with another eps; its own arguments would hide that."""
    found = dumped(lambda side: functional.layer_norm(X, (6,), eps=1e-5 if side == "reference" else 1e-3)).evaluated(
        "layer_norm"
    )
    assert rho(found[0]) > 100


def test_movement_is_compared_bit_by_bit(dumped):
    (call,) = dumped(lambda _: functional.embedding(IDS, X)).calls("embedding")
    swapped = functional.embedding(IDS, X).flip(0)
    (found,) = evaluate_call(call, _Replacing(computation.TensorFiles(), call.sides["target"].outputs[0], swapped))
    assert [found["sides"][side]["equal"] for side in ("reference", "target")] == [True, False]


def test_what_partial_sums_are_off_by_is_said_of_products_in_16_bits_that_are_far_worse_than_the_references(dumped):
    left, right = (torch.randn(64, 64, generator=torch.Generator().manual_seed(seed)).half() for seed in (5, 6))
    left = left + 40.0
    right = right - right.mean(0)
    (call,) = dumped(lambda _: left @ right).calls("matmul")
    parts = [one.float() @ other.float() for one, other in zip(left.split(16, 1), right.split(16, 0), strict=True)]
    made = [part.half() for part in parts]

    def evaluated(output):
        (line,) = evaluate_call(call, _Replacing(computation.TensorFiles(), call.sides["target"].outputs[0], output))
        return line["sides"]

    far = evaluated(made[0] + made[1] + made[2] + made[3])
    assert far["target"]["eta"] > 4 * far["reference"]["eta"]
    # The other way round, a sum may be farther off.
    assert 1.0 <= far["target"]["partial_sums"]["eta"] / far["target"]["eta"] < 1.5
    assert 1.0 <= far["target"]["partial_sums"]["worst_row"] / far["target"]["worst_row"] < 1.5
    near = evaluated(sum(parts).half())
    assert all("partial_sums" not in numbers for numbers in (far["reference"], *near.values()))


@pytest.mark.parametrize(("spelt", "expected"), [(operator.sub, "sub"), (operator.truediv, "div"), (operator.pow, "pow")])
def test_reflected_operators_are_told_from_plain_ones(dumped, spelt, expected):
    for work in (lambda: spelt(2.5, POSITIVE), lambda: spelt(POSITIVE, 2.5)):
        (found,) = dumped(lambda _, work=work: work()).evaluated(expected)
        assert found["sides"]["reference"]["eta"] < 2e-7


def test_in_place_operators_are_evaluated_at_what_went_in(dumped):
    def work(_):
        x = X * 1.0
        x += X
        x.mul_(3.1)
        torch.sigmoid_(x)
        x[:, 0] = 7

    found = dumped(work).evaluated("add_", "mul_", "sigmoid_", "setitem")
    assert [line["evaluated"] for line in found[:3]] == [True] * 3
    assert all(line["sides"]["target"]["eta"] < 2e-7 for line in found[:3])


def test_masked_scores_leave_the_mask_out(dumped):
    mask = torch.full((5, 5), torch.finfo(torch.float32).min).triu(1)
    (found,) = dumped(lambda _: HEADS @ HEADS.transpose(-1, -2) + mask).evaluated("add")
    side = found["sides"]["target"]
    assert (side["filled"], side["misplaced"]) == (2 * 4 * 10, 0)
    assert side["eta"] < 1e-7


def test_a_sum_that_cancels_is_measured_by_its_terms(dumped):
    x = torch.randn(4096, generator=torch.Generator().manual_seed(0))
    x = torch.cat([x, -x])[torch.randperm(8192, generator=torch.Generator().manual_seed(0))]
    (found,) = dumped(lambda _: x.sum()).evaluated("sum")
    assert found["evaluated"]
    assert found["sides"]["target"]["scale"] == pytest.approx(float(x.double().abs().sum()))
    assert found["sides"]["target"]["eta"] < 1e-7


def backward(side):
    del side
    torch.manual_seed(0)
    model = nn.ModuleDict(
        {
            "embed": nn.Embedding(9, 8),
            "norm": nn.LayerNorm(8),
            "fc": nn.Linear(8, 8),
            "conv": nn.Conv1d(8, 8, 3, padding=1),
            "group": nn.GroupNorm(2, 8),
        }
    )
    hidden = functional.gelu(model["fc"](model["norm"](model["embed"](torch.arange(8).view(2, 4)))))
    hidden = functional.relu(model["group"](model["conv"](hidden.transpose(1, 2)))).transpose(1, 2)
    scores = (hidden @ hidden.transpose(-1, -2)).softmax(-1) @ hidden
    heads = scores.view(2, 4, 2, 4).transpose(1, 2)
    attended = functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
    loss = functional.cross_entropy(attended.flatten(0, 1).mean(1), torch.tensor([1, 0, 2, 3])) + scores.tanh().mean()
    loss.backward()


BACKWARD = (
    "native_layer_norm_backward softmax_backward_data threshold_backward gelu_backward mm bmm addmm convolution_backward "
    "embedding_dense_backward native_group_norm_backward log_softmax_backward_data nll_loss_backward tanh_backward sum "
    "scaled_dot_product_flash_attention_for_cpu scaled_dot_product_flash_attention_for_cpu_backward native_layer_norm"
).split()


def test_aten_operators_forward_and_backward_are_reproduced(dumped):
    record = dumped(backward, levels=("operator",), phases=("forward", "backward"))
    found = record.evaluated()
    names = {call.call: call.operator for call in record.calls()}
    assert {names[line["call"]] for line in found if line["evaluated"]} >= set(BACKWARD)
    for line in found:
        assert line["evaluated"] or "was not kept" in line["why"] or "draws" in line["why"], line["why"]
        for side in line["sides"].values() if line["evaluated"] else ():
            assert side["eta"] is None or side["eta"] < 16 * side["unit"], line["call"]


@pytest.mark.parametrize(
    ("work", "why"),
    [
        (lambda: torch.rand(3), "draws random numbers"),
        (lambda: functional.dropout(X, 0.5), "draws random numbers"),
        (lambda: functional.scaled_dot_product_attention(HEADS, HEADS, HEADS, dropout_p=0.5), "drops values at random"),
    ],
)
def test_random_operators_are_refused(dumped, work, why):
    (found,) = dumped(lambda _: work()).evaluated()
    assert not found["evaluated"]
    assert why in found["why"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"operator": "npu_unheard_of"}, "no computation is known for npu_unheard_of"),
        ({"operator": ""}, "a module's own settings are not recorded"),
        ({"arguments": {"1": "x" * 191 + "... #12345678"}}, "the text of an argument was cut"),
        ({"arguments": {"1": "<Thing>"}}, "argument <Thing> cannot be read"),
        ({"arguments": {"1": "'text'"}}, "no computation fits"),
        ({"operator": "exp"}, "float64 gives something else than the reference"),
        ({"operator": "sum"}, "output 0: shape"),
    ],
)
def test_a_call_that_cannot_be_evaluated_says_why(dumped, changes, why):
    (call,) = dumped(lambda _: X * 2.0).calls("mul")
    if "arguments" not in changes:
        changes = {**changes, "arguments": {}}
    (found,) = evaluate_call(call._replace(**changes), computation.TensorFiles())
    assert not found["evaluated"]
    assert why in found["why"]


def test_a_tensor_that_was_not_kept_is_named(dumped):
    (call,) = dumped(lambda _: X + X).calls("add")
    side = call.sides["target"]
    lost = side._replace(inputs=(side.inputs[0]._replace(file=None), *side.inputs[1:]))
    (found,) = evaluate_call(call._replace(sides={**call.sides, "target": lost}), computation.TensorFiles())
    assert found["why"] == "input tensor 0 was not kept"


def test_a_call_that_is_too_large_is_left_out(dumped, monkeypatch):
    monkeypatch.setattr(computation, "MOST_BYTES", 100)
    (found,) = dumped(lambda _: X @ Y).evaluated("matmul")
    assert "in float64, more than" in found["why"]


ALLOCATOR = "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate %d bytes. Error code 12"


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError(ALLOCATOR % 4096)])
def test_too_little_memory_says_nothing_of_a_call_and_ends_the_action(dumped, monkeypatch, error):
    def fail(*_):
        raise error

    record = dumped(lambda _: X.exp())
    monkeypatch.setattr(computation.Computation, "run", fail)
    with pytest.raises(AgentError, match="the memory is not enough to compute") as caught:
        record.evaluated("exp")
    assert caught.value.kind == "memory"


def test_arguments_that_ask_for_more_than_any_call_gets_are_no_matter_of_memory(dumped, monkeypatch):
    def fail(*_):
        raise RuntimeError(ALLOCATOR % (1 << 50))

    record = dumped(lambda _: X.exp())
    monkeypatch.setattr(computation.Computation, "run", fail)
    (found,) = record.evaluated("exp")
    assert not found["evaluated"]


def test_equal_inputs_are_computed_once(dumped, monkeypatch):
    record, runs = dumped(lambda _: X.exp()), []
    plain = computation.Computation.run
    monkeypatch.setattr(computation.Computation, "run", lambda self, side: runs.append(1) or plain(self, side))
    record.evaluated("exp")
    assert len(runs) == 1


def test_the_action_writes_a_line_for_each_output(dumped, asked, events, tmp_path, write_calls):
    folder = tmp_path / "output"
    request = asked(action="evaluate")
    write_calls(dumped(lambda _: (X @ Y, X.topk(2), X.max(-1))), folder)
    before = torch.get_num_threads()
    worker.run(requests.parse(request), events)
    torch.set_num_threads(before)
    found = [json.loads(line) for line in (folder / "evaluated.jsonl").read_text().splitlines()]
    assert [(line["call"].split("/")[1], line["index"]) for line in found] == [
        ("matmul.0", "0"),
        ("topk.0", "0"),
        ("topk.0", "1"),
        ("max.0", "0"),
        ("max.0", "1"),
    ]
    assert all(line["evaluated"] for line in found)
    assert torch.get_default_dtype() is torch.float32
    assert [event["text"] for event in events.lines() if event.get("step") == "evaluate"][-1] == "3 calls"


def test_movement_that_was_not_stored_is_moved_again_and_compared_by_content(dumped):
    record = dumped(lambda _: (X * 1.0).view(2, 2, 6).transpose(0, 1).contiguous().view(2, 12) * 1.0)
    files, found = computation.TensorFiles(), []
    for call in record.calls("view", "transpose", "contiguous"):
        lines = [next(line for line in record.lines["reference"] if "/{operator}.{ordinal}/".format(**line) in call.call)] * 2
        sides = {}
        for (side, tensors), line in zip(call.sides.items(), lines, strict=True):
            sides[side] = type(tensors)(
                *(
                    tuple(each._replace(content=known["content"]) for each, known in zip(stored, line[role], strict=True))
                    for role, stored in (("inputs", tensors.inputs), ("outputs", tensors.outputs))
                )
            )
        found += evaluate_call(call._replace(sides=sides), files)
        if call.operator == "transpose":
            wrong = sides["target"].outputs[0]._replace(content="0" * 32)
            sides = {**sides, "target": sides["target"]._replace(outputs=(wrong,))}
            (other,) = evaluate_call(call._replace(sides=sides), files)
            assert [other["sides"][side]["equal"] for side in sides] == [True, False]
    assert [line["why"] for line in found] == [""] * 4
    assert all(side["equal"] for line in found for side in line["sides"].values())


def test_a_constant_of_the_target_in_its_own_type_is_not_taken_for_a_fault(dumped):
    def work(side):
        return torch.full((3,), 0.1, dtype=torch.float32 if side == "reference" else torch.float16)

    (found,) = dumped(work).evaluated("full")
    assert found["kind"] == "movement"
    assert [found["sides"][side]["equal"] for side in ("reference", "target")] == [True, True]
