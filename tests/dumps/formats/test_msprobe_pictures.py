"""What lies around the operators of a network that msprobe has recorded: its data, its modules' own code, settings, updates."""

import pytest

from precflow.dumps.formats import read_dump
from precflow.stages.two_dumps import compare_dumps

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("foreign")]


@pytest.fixture
def compared(foreign_runs):
    """Return a function that compares the network with one that has a fault."""

    def compare(task, fault):
        sides = [read_dump(foreign_runs / name) for name in (f"pictures_{task}", f"pictures_{task}_{fault}")]
        return compare_dumps(*sides, command="", evaluates=False)

    return compare


def introducing(model):
    """Return the records that introduce an error, of the first step."""
    return {row.judged.record for row in model.rows if row.role == "introduces" and "@1" not in row.judged.record}


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_a_module_that_rounds_what_it_is_given_is_named_and_the_data_are_not(compared, task):
    """Operators are recorded before the module around them: its input is the model's, and not the first operator's."""
    model = compared(task, "rounded")
    assert (model.verdict.verdict, model.region.start) == ("misaligned", "stem")
    assert introducing(model) == {"stem/forward.output.0"}
    if task == "tensor":
        assert "rounded to about 9 bits" in model.findings[0].title


def test_what_is_flattened_by_no_recorded_call_inherits(compared):
    """Nothing recorded made the head's input, and what failed before it did."""
    for task in ("statistics", "tensor"):
        model = compared(task, "late_residual")
        assert (model.verdict.verdict, model.region.start) == ("misaligned", "blocks.1")
        assert introducing(model) == {"blocks.1/forward.output.0"}


def test_an_argument_has_its_name(compared):
    model = compared("statistics", "epsilon")
    assert model.region.start == "blocks.1.bn2 / batch_norm"
    assert model.findings[0].title == "batch_norm is called with a different argument: eps: 1e-05 / 0.001"
    assert not any(label == "inputs bitwise equal" for label, *_ in model.findings[0].evidence)  # statistics do not tell


def test_pictures_with_channels_in_another_order_are_never_called_equal(compared):
    by_statistics, by_tensors = compared("statistics", "bgr"), compared("tensor", "bgr")
    assert by_statistics.phases[0].state == "not_told"
    assert by_tensors.findings[0].rule == "PF417"


def test_running_statistics_at_another_rate_are_never_aligned(compared):
    model = compared("tensor", "momentum")
    assert model.verdict.verdict == "inconclusive"
    assert "momentum 0.1 / 0.01" in " ".join(model.verdict.reasons)


def test_an_update_that_differs_behind_equal_gradients_is_told_as_one(compared):
    model = compared("tensor", "clipped")
    assert [one.state for one in model.phases] == ["aligned", "aligned", "aligned", "starts"]
    assert [one.rule for one in model.findings] == ["PF822"]


def test_inputs_are_those_of_the_outermost_module(foreign_runs):
    dump = read_dump(foreign_runs / "pictures_tensor_rounded")
    assert [*dump.header.inputs.entries] == ["step0.0", "step1.0"]
    module = next(call for call in dump.calls() if call.module == "stem" and not call.operator)
    assert dump.header.inputs.entries["step0.0"].content == module.inputs[0].content


def test_calls_of_both_sides_that_statistics_cannot_decide_are_not_told_as_calls_of_one(foreign_runs):
    """Level L1 knows of no module: what takes another call's output on the target is where it starts."""
    sides = [read_dump(foreign_runs / name) for name in ("functions_statistics", "functions_statistics_late_residual")]
    model = compare_dumps(*sides, command="", evaluates=False)
    assert (model.verdict.verdict, model.region.start) == ("misaligned", "(outside) / add.1")
    assert "PF234" not in {one.rule for one in model.findings}
