"""Standards: the shipped ones are whole, broken ones are refused with a reason."""

import re

import pytest
import torch

from precflow.comparison.fused.close_tolerances import RUNGS
from precflow.dumps.dtypes import FLOATS
from precflow.errors import ConfigError
from precflow.judgement import standards

WHOLE = "title: t\nsource: s\nlimits: {float32: {relative_l2: 1%}}\n"


@pytest.mark.parametrize("name", ["default", "allclose"])
def test_shipped_standards_have_every_float_type(name):
    standard = standards.load(name)
    assert tuple(standard.limits) == FLOATS
    assert all(standard.limits.values())
    assert standard.title
    assert standard.source


def test_the_default_limits():
    limits = {dtype: found[0].limit for dtype, found in standards.load("default").limits.items()}
    assert (limits["float32"], limits["float16"], limits["bfloat16"]) == (2**-16, 2**-8, 2**-5)


@pytest.mark.parametrize("name", RUNGS)
def test_the_ladder_has_assert_closes_own_numbers(name):
    dtype = getattr(torch, name)
    assert torch.testing._comparison.default_tolerances(dtype) == RUNGS[name]


def test_a_folder_of_ones_own_comes_first(tmp_path):
    (tmp_path / "default.yaml").write_text(WHOLE)
    assert standards.load("default", [tmp_path]).limits["float32"][0].limit == 0.01


def test_an_unknown_standard_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"no standard 'defualt' \(known: allclose, assert_close, .*default, .*Did you mean"):
        standards.load("defualt")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("limits: {float32: {relative_l2: 1%}}", "title .*is missing"),
        ("[", "is not YAML"),
        ("- a", "expected `key: value` lines"),
        (WHOLE.replace("relative_l2", "relativ_l2"), "no such metric. Did you mean  relative_l2 .*mine.yaml:3"),
        (WHOLE.replace("1%", "1 percent"), "expected a share .*got `1 percent` .*mine.yaml:3"),
        (WHOLE.replace("float32", "floot32"), "is no element type; .* Did you mean  float32"),
        (WHOLE.replace("{relative_l2: 1%}", "3"), "float32 .*expected `name: value` lines, got `3`"),
        (WHOLE.replace("{relative_l2: 1%}", "{}"), "expected metrics and their limits"),
        (WHOLE + "limit: 3\n", "limit .*no such key. Did you mean  limits .*mine.yaml:4"),
        ("title: t\nsource: s\n", "limits   expected element types"),
        (
            "a: &a [1]\n"
            + "".join(
                f"k{n}: &k{n} [*{'a' if n == 0 else f'k{n - 1}'}, *{'a' if n == 0 else f'k{n - 1}'}]\n" for n in range(40)
            ),
            ".",
        ),
    ],
)
def test_a_broken_standard_is_refused_with_the_line(tmp_path, text, message):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError) as refused:
        standards.load("mine", [tmp_path])
    assert re.search(message, str(refused.value), re.DOTALL)
