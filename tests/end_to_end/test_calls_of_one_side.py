"""What runs around a model differs: a call that one side alone makes, or others in place of these."""

import pytest
import torch
from torch import nn

import precflow

pytestmark = pytest.mark.slow  # records two dumps each


@pytest.fixture
def compare(tmp_path):
    """Return a function that records a search by embeddings twice, the second time with a change, and compares the two."""

    def record(side, way):
        torch.manual_seed(0)
        models = nn.ModuleDict({"encoder": nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))})
        tokens, mask = torch.randn(3, 5, 8), (torch.arange(5) < torch.tensor([[5], [3], [2]])).float()
        with precflow.capture(models, tmp_path / side) as recording, torch.no_grad():
            hidden = models["encoder"](tokens)
            if way != "keeps_all":
                hidden[:, 0] = 0.0
            weights = mask.unsqueeze(-1)
            pooled = hidden.mean(1) if way == "pools_padding" else (hidden * weights).sum(1) / weights.sum(1)
            if way == "clamps":
                pooled = pooled.clamp(-0.01, 0.01)
            torch.nn.functional.normalize(pooled / 0.18, dim=-1)
            recording.step()
        return tmp_path / side

    return lambda way: precflow.compare(record("reference", ""), record("target", way))


@pytest.mark.parametrize(
    ("way", "rule", "says"),
    [
        ("clamps", "PF234", "(outside) / clamp runs on the target alone, and the error starts there"),
        ("keeps_all", "PF234", "(outside) / setitem runs on the reference alone, and the error starts there"),
        ("pools_padding", "PF207", "on the reference, mean on the target"),
    ],
)
def test_a_call_that_one_side_alone_makes_is_what_is_said(compare, way, rule, says):
    found = compare(way)
    assert found.verdict == "misaligned"
    assert (found.findings[0].rule, found.findings[0].certainty) == (rule, "likely")
    assert says in found.findings[0].title
    verb = "compare" if rule == "PF207" else "inspect"  # one side has no record of a call that the other alone makes
    assert found.findings[0].try_it.startswith(f"precflow {verb} ")
    assert "PF215" not in {one.rule for one in found.findings}
