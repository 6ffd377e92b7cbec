"""Two micro batches with answers of different length, whose losses are divided by tokens of their own or of the step."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import precflow
from precflow.diagnosis.evidence.of_run.micro_batches import find_factors
from precflow.dumps.formats import read_dump

TOKENS = (12, 3)


def record(folder, side, *, own, detail="sketch", dtype=torch.float32):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(30, 8), nn.GELU(), nn.Linear(8, 30)).to(dtype)
    with precflow.capture(net, folder / side, side=side, phase=["forward", "backward", "gradient"], detail=detail) as recording:
        for count in TOKENS:
            ids = torch.randint(0, 30, (2, 10))
            labels = ids.flatten().clone()
            labels[count:] = -100
            loss = functional.cross_entropy(net(ids).flatten(0, 1), labels, reduction="sum", ignore_index=-100)
            (loss / (count * len(TOKENS) if own else sum(TOKENS))).backward()
        recording.step()
    return read_dump(folder / side)


@pytest.mark.parametrize("detail", ["sketch", "tensors"])
def test_each_micro_batch_has_the_factor_that_its_tokens_give(tmp_path, detail):
    reference, target = (
        record(tmp_path, "reference", own=False, detail=detail),
        record(tmp_path, "target", own=True, detail=detail),
    )
    found = find_factors(reference, target)
    assert found["micro_factors"] == pytest.approx([15 / 24, 15 / 6], rel=1e-4)
    assert found["micro_tokens"] == list(TOKENS)
    assert found["micro_divides"] == "target"
    assert find_factors(target, reference)["micro_divides"] == "reference"


def test_losses_that_are_divided_alike_say_nothing(tmp_path):
    assert find_factors(*(record(tmp_path, side, own=True) for side in ("reference", "target"))) == {}


def test_rounding_in_16_bits_hides_no_factor(tmp_path):
    dumps = [record(tmp_path, side, own=side == "target", dtype=torch.bfloat16) for side in ("reference", "target")]
    found = find_factors(*dumps)
    assert found["micro_factors"] == pytest.approx([15 / 24, 15 / 6], rel=5e-3)
    assert found["micro_divides"] == "target"
    assert find_factors(dumps[0], dumps[0]) == {}
