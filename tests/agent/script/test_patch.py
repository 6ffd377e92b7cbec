"""The patch that draws on the CPU: what it writes runs, and gives what was drawn on the CPU."""

import subprocess

import pytest
import torch

from precflow.agent.script.patch import make_patch, rewrite


@pytest.mark.parametrize(
    ("operator", "before", "after"),
    [
        ("randn", "x = torch.randn(2, 3, device=d)", "x = torch.randn(2, 3).to(d)"),
        ("randn", "x = torch.randn(*size, dtype=t, device=y.device)", "x = torch.randn(*size, dtype=t).to(y.device)"),
        ("randint", "t = torch.randint(0, 9, (4,), device=d).long()", "t = torch.randint(0, 9, (4,)).to(d).long()"),
        ("randperm", "randperm(9, device=d)", "randperm(9).to(d)"),
        ("randn_like", "n = torch.randn_like(x)", 'n = torch.randn_like(x, device="cpu").to(x.device)'),
        ("rand_like", "n = torch.rand_like(x.y, device=d)", 'n = torch.rand_like(x.y, device="cpu").to(d)'),
        ("bernoulli", "m = torch.bernoulli(p)", "m = torch.bernoulli(p.cpu()).to(p.device)"),
        ("multinomial", "m = torch.multinomial(p, 2)", "m = torch.multinomial(p.cpu(), 2).to(p.device)"),
        ("normal_", "w.normal_(std=0.02)", 'w.copy_(torch.empty_like(w, device="cpu").normal_(std=0.02))'),
        ("uniform_", "w.data.uniform_(-1, 1)", 'w.data.copy_(torch.empty_like(w.data, device="cpu").uniform_(-1, 1))'),
    ],
)
def test_a_draw_is_moved(operator, before, after):
    assert rewrite(before, {1: operator}) == (after, [])


@pytest.mark.parametrize(
    ("operator", "line"),
    [
        ("randn", "x = torch.randn(2, 3)"),  # on the default device, which the call does not say
        ("randn", "x = torch.randn(2, 3, device=d, generator=g)"),
        ("randn", "x = torch.randn(2, **options)"),
        ("randn_like", "x = torch.randn_like(make())"),
        ("dropout", "x = F.dropout(x)"),
        ("kaiming_uniform_", "torch.nn.init.kaiming_uniform_(w)"),
        ("normal_", "next(it).normal_()"),
        ("randn", "x = draw()"),
        ("randn", "x = ("),
    ],
)
def test_what_cannot_be_moved_by_one_call_is_left_and_named(operator, line):
    assert rewrite(line, {1: operator}) == (line, [1])


def test_only_the_named_lines_change():
    source = "a = torch.randn(2, device=d)\nb = torch.randn(\n    2,\n    device=d,\n)\nc = torch.rand(2, device=d)\n"
    changed, left = rewrite(source, {2: "randn"})
    assert left == []
    assert changed == "a = torch.randn(2, device=d)\nb = torch.randn(2).to(d)\nc = torch.rand(2, device=d)\n"


def test_the_patch_applies_with_git_and_draws_as_the_cpu_does(tmp_path):
    head = "import torch\n# 噪声\nx = torch.zeros(3, dtype=torch.float64)\n"
    source = head + "n = torch.randn_like(x)\nm = torch.rand(2, device=x.device)"
    (tmp_path / "sub").mkdir()
    file = tmp_path / "sub" / "train.py"
    file.write_text(source, encoding="utf-8")
    patch = make_patch({(str(file), 4): "randn_like", (str(file), 5): "rand", ("/elsewhere/lib.py", 7): "randn"}, str(tmp_path))
    assert patch.left == ["lib.py:7 randn"]
    (tmp_path / "draws.patch").write_text(patch.text, encoding="utf-8")
    subprocess.run(["git", "init", "-q", "."], cwd=tmp_path, check=True)
    subprocess.run(["git", "apply", "draws.patch"], cwd=tmp_path, check=True)
    drawn = {}
    torch.manual_seed(3)
    exec(file.read_text(encoding="utf-8"), drawn)
    torch.manual_seed(3)
    assert torch.equal(drawn["n"], torch.randn(3, dtype=torch.float64))
    assert torch.equal(drawn["m"], torch.rand(2))
    assert "# 噪声" in file.read_text(encoding="utf-8")
