import copy
import json

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from precflow.agent.capture.recorder import Recorder
from precflow.agent.dump.writer import Writer
from precflow.agent.measure.content_id import content_id
from precflow.agent.request import CaptureSection


@pytest.fixture
def calls(tmp_path):
    """Return a function that records what a function does with tensors, as ``name -> line`` (the last of a name)."""

    def run(function, *tensors):
        writer = Writer(str(tmp_path))
        with Recorder(writer, CaptureSection(level=["api"])).watch(nn.Identity()):
            result = function(*tensors)
        writer.seal({})
        text = (tmp_path / "rank0/step0/records-0.jsonl").read_text(encoding="utf-8")
        lines = [json.loads(line) for line in text.splitlines()]
        return result, {f"{line['operator']}.{line['ordinal']}": line for line in lines}

    return run


def contents(line, role):
    return [record["content"] for record in line[role]]


def test_inputs_of_in_place_operators_are_those_before(calls):
    x = torch.ones(3)
    _, found = calls(lambda x: x.add_(1).mul(3), x)
    assert contents(found["add_.0"], "inputs") != contents(found["add_.0"], "outputs")
    assert contents(found["mul.0"], "inputs") == contents(found["add_.0"], "outputs")
    assert found["mul.0"]["inputs"][0]["source"] == [0, "0"]


def test_the_old_value_is_stored_too(calls, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    _, found = calls(lambda x: x.add_(1), torch.ones(3))
    shard = safetensors.load_file(str(tmp_path / "rank0/step0/tensors-0.safetensors"))
    assert torch.equal(shard[contents(found["add_.0"], "inputs")[0]], torch.ones(3))
    assert torch.equal(shard[contents(found["add_.0"], "outputs")[0]], torch.full((3,), 2.0))


def test_every_arithmetic_operator_of_python_is_recorded(calls):
    def run(x):
        y = x**2 + 2**x - 1 / (x % 3) * (x // 2) @ x
        y **= 2
        return (-y <= abs(x)) & ~(x > 1)

    _, found = calls(run, torch.arange(1.0, 3.0))
    assert {"pow.0", "pow_.0", "floor_divide.0", "matmul.0"} <= set(found)


def test_inference_mode_records_in_place_operators(calls):
    def run(x):
        with torch.inference_mode():
            y = x + 1
            y.mul_(2)
            torch.add(y, 1, out=y)
            return y - 1

    _, found = calls(run, torch.ones(2))
    assert contents(found["mul_.0"], "inputs") == contents(found["add.0"], "outputs")
    assert contents(found["mul_.0"], "outputs") == contents(found["add.1"], "inputs")[:1]
    assert contents(found["sub.0"], "inputs") == contents(found["add.1"], "outputs")
    assert found["sub.0"]["inputs"][0]["source"] == [2, "0"]


def test_what_an_operator_without_result_wrote_are_its_outputs(calls):
    library = torch.library.Library("precflow_writes", "DEF")
    library.define("bump(Tensor(a!) x, Tensor y, Tensor(b!) z) -> ()")
    library.impl("bump", lambda x, y, z: (x.add_(y), z.add_(y))[2:] or None, "CompositeExplicitAutograd")
    _, found = calls(torch.ops.precflow_writes.bump, torch.ones(1), torch.ones(1), torch.zeros(1))
    before, after = contents(found["bump.0"], "inputs"), contents(found["bump.0"], "outputs")
    assert [record["index"] for record in found["bump.0"]["outputs"]] == ["0", "2"]
    assert after[0] not in before
    assert after[1] == before[1]


def test_custom_operators_have_their_name(calls):
    library = torch.library.Library("precflow_test", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
    result, found = calls(torch.ops.precflow_test.twice, torch.ones(2))
    assert list(found) == ["twice.0"]
    assert torch.equal(result, torch.full((2,), 2.0))


def test_other_arguments_are_text(calls):
    _, found = calls(lambda x: torch.nn.functional.softmax(x, dim=-1, dtype=torch.float64), torch.ones(2))
    assert found["softmax.0"]["arguments"]["dim"] == "-1"
    assert found["softmax.0"]["arguments"]["dtype"] == "torch.float64"
    assert found["softmax.0"]["outputs"][0]["dtype"] == "float64"


def test_movement_is_digested_and_not_stored(calls):
    _, found = calls(lambda x: x.transpose(0, 1) * 2, torch.arange(6.0).reshape(2, 3))
    assert found["transpose.0"]["movement"] is True
    assert found["transpose.0"]["outputs"][0]["stored"] is False
    assert contents(found["transpose.0"], "outputs") == contents(found["mul.0"], "inputs")
    assert found["mul.0"]["inputs"][0]["stored"] is True


def test_what_makes_no_new_tensor_is_no_record(calls):
    def run(x):
        x.contiguous()
        x.dim(), x.shape, x.sum().item(), len(x), torch.equal(x, x), x.double(), torch.empty_like(x)
        x.requires_grad_(requires_grad=False)
        return bool((x > 0).all())

    _, found = calls(run, torch.ones(2))
    assert list(found) == ["sum.0", "gt.0", "all.0"]


def test_every_run_of_an_operator_counts_for_its_ordinal(calls):
    _, found = calls(lambda x: x.t().contiguous() if x.contiguous() is x else x, torch.arange(6.0).reshape(2, 3))
    assert "contiguous.1" in found
    assert "contiguous.0" not in found


def test_edges_run_through_casts(calls):
    _, found = calls(lambda x: (x + 1).half().data.float() * 2, torch.ones(2))
    assert found["mul.0"]["inputs"][0]["source"] == [0, "0"]


@pytest.mark.parametrize(
    ("by", "made"),
    [
        ("empty_like", lambda x: torch.add(x, 1, out=torch.empty_like(x))),
        ("new_empty", lambda x: torch.add(x, 1, out=x.new_empty(2))),
        ("grad", lambda x: (x.retain_grad(), x.sum().backward(), torch.add(x.grad, 1))[-1]),
    ],
)
def test_what_is_not_made_of_a_tensor_does_not_come_from_where_it_does(calls, by, made):
    with torch.set_grad_enabled(by == "grad"):
        _, found = calls(lambda x: made(x * 2), torch.ones(2, requires_grad=True))
    assert found["add.0"]["inputs"][-1]["source"] is None


def test_a_copy_is_no_record_and_comes_from_where_its_original_does(calls):
    def run(x):
        several = {"a": x * 2, "b": x}
        return torch.add(*copy.deepcopy(several).values())

    _, found = calls(run, torch.ones(2))
    assert list(found) == ["mul.0", "add.0"]
    assert [record["source"] for record in found["add.0"]["inputs"]] == [[0, "0"], None]


def test_writes_that_are_not_counted_show_in_what_comes_next(calls):
    def run(gradient):
        gradient.norm()
        torch._amp_foreach_non_finite_check_and_unscale_([gradient], torch.zeros(1), torch.full((1,), 0.5))
        return gradient.sum()

    gradient = torch.ones(3)
    _, found = calls(run, gradient)
    assert contents(found["norm.0"], "inputs") == [content_id(torch.ones(3))]
    assert contents(found["sum.0"], "inputs") == [content_id(torch.full((3,), 0.5))]


def test_a_view_from_outside_claims_nothing(calls):
    _, found = calls(lambda x: (x.view(4), x + 1), torch.ones(2, 2))
    assert found["view.0"]["inputs"][0]["source"] is None
    assert found["add.0"]["inputs"][0]["source"] is None


def test_exceptions_pass_and_the_failed_call_is_no_record(calls):
    def run(x):
        with pytest.raises(RuntimeError, match="must match"):
            x + torch.ones(3)
        return x + 1

    _, found = calls(run, torch.ones(2))
    assert "add.0" not in found
    assert "add.1" in found


def test_tensor_subclasses_and_other_modes_still_work(calls):
    class Tagged(torch.Tensor):
        pass

    class Counting(TorchFunctionMode):
        seen = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            Counting.seen += 1
            return func(*args, **(kwargs or {}))

    def run(x):
        with Counting():
            return x.as_subclass(Tagged) + 1

    result, found = calls(run, torch.ones(2))
    assert isinstance(result, Tagged)
    assert Counting.seen > 0
    assert "add.0" in found


def test_vmap_is_recorded_without_content(calls):
    result, found = calls(torch.func.vmap(lambda row: row * 2), torch.ones(2, 3))
    assert torch.equal(result, torch.full((2, 3), 2.0))
    assert contents(found["mul.0"], "outputs") == [""]


def test_random_numbers_are_drawn_as_without(calls):
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    result, found = calls(lambda: torch.rand(3))
    assert torch.equal(result, expected)
    assert list(found) == ["rand.0"]


def test_what_an_operator_on_lists_writes_to_is_recorded_below_a_dispatch_mode(calls):
    class Below(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    def run(one, other, factor):
        torch._foreach_mul_([one, other], factor)
        return one + 0

    tensors = [torch.ones(2), torch.ones(3), torch.tensor(2.0)]
    _, plain = calls(run, *copy.deepcopy(tensors))
    with Below():
        _, below = calls(run, *tensors)
    assert contents(below["foreach_mul_.0"], "outputs") == contents(plain["foreach_mul_.0"], "outputs")
    assert [line["inputs"][0]["source"] for line in (plain["add.0"], below["add.0"])] == [[0, "0"], [0, "0"]]
