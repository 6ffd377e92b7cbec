"""Two implementations of one model: what has no partner is covered by its module, and rules pair what has another name."""

import pytest
import torch
from torch import nn

import precflow as library

RECIPE = """# @package _global_
about: {title: A fused projection, owner: us, needs: ">=0.1"}
pairing:
  rules:
    - {reference: ["*.q", "*.k", "*.v"], target: ["*.qkv"]}
    - {reference: ["gone"], target: ["gone_too"]}
"""


class Separate(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        scores = torch.softmax(self.q(x) @ self.k(x).transpose(-1, -2) / 8**0.5, -1)
        return scores @ self.v(x)


class Fused(nn.Module):
    def __init__(self, other, scale):
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.scale = scale
        parts = (other.q, other.k, other.v)
        with torch.no_grad():
            self.qkv.weight.copy_(torch.cat([part.weight for part in parts]))
            self.qkv.bias.copy_(torch.cat([part.bias for part in parts]))

    def forward(self, x):
        return nn.functional.scaled_dot_product_attention(*self.qkv(x).chunk(3, -1), scale=self.scale / 8**0.5)


class Model(nn.Module):
    def __init__(self, attention):
        super().__init__()
        torch.manual_seed(1)
        self.attention, self.out = attention, nn.Linear(8, 8)

    def forward(self, x):
        return self.out(self.attention(x))


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    """Return the folders of an eager model, the same with fused projection and attention, and one with a wrong scale."""
    folder = tmp_path_factory.mktemp("dumps")
    torch.manual_seed(0)
    eager = Separate()
    given = torch.randn(2, 5, 8)
    sides = {"eager": eager, "fused": Fused(eager, 1.0), "wrong": Fused(eager, 1.5)}
    for name, attention in sides.items():
        model, side = Model(attention), "reference" if name == "eager" else "target"
        with library.capture(model, folder / name, side=side):
            model(given)
    return folder


@pytest.fixture
def compare(precflow, dumps, tmp_path):
    """Return a function that compares a dump with the eager one by the recipe above."""
    (tmp_path / "ours.yaml").write_text(RECIPE, encoding="utf-8")

    def run(target, *words):
        sides = f"reference.dump={dumps / 'eager'}", f"target.dump={dumps / target}"
        return precflow(f"+recipe={tmp_path / 'ours.yaml'}", *sides, *words, recipe="ours", cwd=tmp_path)

    return run


def test_a_correct_fused_implementation_is_aligned(compare):
    ended = compare("fused")
    assert ended.code == 0, ended.err
    rows = {row["record"]: row for row in ended.result["rows"]}
    assert ended.result["verdict"]["coverage"] == 1.0
    assert rows["attention.k/linear.0/forward.output.0"]["pairing"] == "pairing.rules[0]"
    assert rows["attention/softmax.0/forward.output.0"]["status"] == "covered"
    assert "covered by their modules" in ended.said
    assert any("gone_too on the target, pairs no record" in text for text in ended.result["verdict"]["warnings"])


def test_an_error_in_it_starts_at_the_module_and_not_at_what_follows(compare):
    ended = compare("wrong")
    assert not ended.problems(1, "starts at attention", "PF207")
    (suspect,) = ended.result["region"]["suspects"]
    assert suspect["after"] == ["attention.q / linear", "attention.k / linear", "attention.v / linear"]
    assert "attention / softmax" in suspect["between_reference"]
    assert suspect["between_target"] == ["attention / scaled_dot_product_attention"]
