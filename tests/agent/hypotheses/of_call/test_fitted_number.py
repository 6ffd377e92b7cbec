"""Numbers that are fitted to a target's output, and outputs that any number would fit."""

import pytest
import torch
from torch.nn import functional

from precflow.agent.hypotheses.of_call.fitted_number import fit_others
from precflow.agent.replay.calls import RecordedCall, SideTensors, StoredTensor

VALUES = torch.randn(8, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def fit(operator, inputs, target, run, arguments=None):
    """Return the fitted numbers by argument."""
    stored = tuple(StoredTensor(path, "float32", tuple(value.shape), None, 0, 0) for path, value in inputs.items())
    call = RecordedCall("a/f.0", "api", operator, "", "forward", arguments or {}, {"target": SideTensors(stored, ())})
    return {other.argument: float(other.value) for other in fit_others(call, inputs, {"0": target}, run)}


def run_elu(call):
    return {"0": functional.elu(VALUES, float(call.arguments.get("1", call.arguments.get("alpha", "1.0"))))}


@pytest.mark.parametrize("alpha", [0.003, 0.37, 2.0, 13.5])
def test_the_number_is_found_to_the_rounding_of_the_target(alpha):
    assert fit("elu", {"0": VALUES}, functional.elu(VALUES, alpha), run_elu) == {"alpha": pytest.approx(alpha, rel=1e-6)}
    rounded = functional.elu(VALUES, alpha).bfloat16()
    assert fit("elu", {"0": VALUES}, rounded, run_elu) == {"alpha": pytest.approx(alpha, rel=0.01)}


def test_a_number_that_nothing_hangs_on_is_not_fitted():
    assert fit("elu", {"0": VALUES.abs()}, VALUES.abs() * 2, lambda _: {"0": VALUES.abs()}) == {}


def test_a_single_number_would_fit_any_other_one():
    loss = torch.tensor(3.0)
    assert fit("cross_entropy", {"0": VALUES}, loss, lambda _: {"0": loss.double()}) == {}
