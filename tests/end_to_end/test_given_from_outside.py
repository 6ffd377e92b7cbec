"""A loop over several models gets something from code that is not recorded: noise, a table of its schedule."""

import pytest
import torch
from torch import nn

import precflow

pytestmark = pytest.mark.slow  # records two dumps each


@pytest.fixture
def compare(tmp_path):
    """Return a function that records a small sampler twice, the second time with a change, and compares the two."""

    def record(side, way):
        torch.manual_seed(0)
        models = nn.ModuleDict(
            {"encoder": nn.Linear(6, 8), "denoiser": nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8))}
        )
        table = torch.linspace(0.9, 0.1, 40) * (1.01 if way == "table" else 1.0)
        seed = 2 if way == "seed" else 1
        noise = torch.randn(24, 8, generator=torch.Generator().manual_seed(seed))
        if way == "layout":
            noise = torch.randn(8, 24, generator=torch.Generator().manual_seed(seed)).t()
        if way == "rounding":
            noise = noise * (1 + 2**-23)
        with precflow.capture(models, tmp_path / side) as recording, torch.no_grad():
            condition = models["encoder"](torch.ones(24, 6))
            for place in (3, 20):
                noise = noise - table[place] * models["denoiser"](torch.cat([noise, condition], -1))
            if way == "model":
                models["encoder"](noise[:, :6])
            recording.step()
        return tmp_path / side

    def run(way):
        return precflow.compare(record("reference", ""), record(f"target_{way}", way))

    return run


@pytest.mark.parametrize(
    ("way", "certainty", "title"),
    [
        (
            "seed",
            "certain",
            "(outside) / cat is given another tensor on the target: input 0.0, which no recorded call made: other random",
        ),
        (
            "layout",
            "certain",
            "(outside) / cat is given another tensor on the target: input 0.0, which no recorded call made: the same",
        ),
        ("table", "likely", "(outside) / getitem is given another tensor on the target: input 0, which no recorded call made"),
    ],
)
def test_what_the_loop_itself_made_is_named_and_not_the_call_that_takes_it(compare, way, certainty, title):
    found = compare(way)
    assert found.verdict == "misaligned"
    first = found.findings[0]
    assert (first.rule, first.certainty) == ("PF420", certainty)
    assert first.title.startswith(title)


def test_rounding_of_what_the_loop_made_is_no_other_tensor(compare):
    found = compare("rounding")
    assert "PF420" not in {one.rule for one in found.findings}
