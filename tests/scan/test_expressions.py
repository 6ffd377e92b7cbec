"""Formulas that are written out, in the ways in which people write them, and what only looks like one."""

import ast

import pytest

from precflow.scan.expressions import fits, read_expression
from precflow.scan.index import Index
from precflow.scan.python import scan_source
from precflow.scan.rules import load_rules


@pytest.fixture(scope="module")
def index():
    return Index(load_rules())


def in_forward(line):
    return f"import torch\nimport torch.nn.functional as F\nclass A:\n    def forward(self, x):\n        return {line}\n"


@pytest.mark.parametrize(
    ("line", "kinds"),
    [
        ("self.weight * (x * torch.rsqrt(v + self.eps))", ["rms_norm"]),
        ("torch.rsqrt(self.eps + v) * x", ["rms_norm"]),
        ("x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)", ["rms_norm"]),
        ("(q * cos) + (rotate_half(q) * sin)", ["rotary"]),
        ("self.down(F.silu(self.gate(x)) * self.up(x))", ["swiglu"]),
        ("torch.softmax(s, dim=-1) @ v", ["attention"]),
        ("torch.matmul(torch.softmax(s, -1, dtype=torch.float32), v)", ["attention"]),
        ("x / torch.sqrt(y.pow(2).mean(-1) + 1e-6)", []),  # of another tensor
        ("(q * cos) + (rotate_half(k) * sin)", []),
        ("F.silu(x)", []),
        ("torch.softmax(s, -1) * v", []),
        ("torch.rsqrt(v)", []),
    ],
)
def test_a_written_formula_is_found_as_what_it_is(line, kinds, index):
    found = scan_source(in_forward(line), index).findings
    assert [finding.rule.partition(".")[2] for finding in found if finding.kind == "fused"] == kinds
    assert {finding.weight for finding in found if finding.kind == "fused"} <= {"numbers"}


def test_a_formula_elsewhere_is_none(index):
    source = "import torch\ndef plot(x):\n    return x[x > 0], x * torch.rsqrt(x + 1)\n"
    assert [finding.rule for finding in scan_source(source, index).findings] == []


def test_letters_are_tried_either_way_round():
    def match(pattern, text):
        return fits(read_expression(pattern), ast.parse(text, mode="eval").body, lambda _: "")

    assert match("(A + B) * A", "(x + y) * y")
    assert not match("(A + B) * A", "(x + y) * z")
    assert not match("A - B", "x + y")
    assert match("A.f(B, ..., k=C)", "x.f(1, 2, 3, k=4, j=5)")
    assert not match("A.f(B)", "x.f(1, 2)")
    assert not match("A.f(B, ..., k=C)", "x.f(1)")


def test_a_rule_whose_expression_is_none_is_refused(tmp_path):
    from precflow.errors import ConfigError

    rules = ["expressions: ['X +']", "expressions: [X]", "names: [a.b], within: [f]"]
    text = "".join(f"  r{number}: {{why: w, do: d, {rule}}}\n" for number, rule in enumerate(rules))
    (tmp_path / "bad.yaml").write_text(f"title: t\nrules:\n{text}", encoding="utf-8")
    with pytest.raises(ConfigError) as refused:
        load_rules([tmp_path])
    said = str([problem.message for problem in refused.value.problems])
    for words in ("is no expression of Python", "would be found everywhere", "says where expressions count"):
        assert words in said
