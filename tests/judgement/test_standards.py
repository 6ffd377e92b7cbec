"""Standards: the shipped ones are whole, broken ones are refused with a reason."""

import pytest
import torch

from precflow.comparison.ladder import RUNGS
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
    with pytest.raises(ConfigError, match=r"no standard 'defualt' \(known: allclose, default.*Did you mean  default"):
        standards.load("defualt")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("limits: {float32: {relative_l2: 1%}}", "'title'"),
        ("[", "not usable"),
        ("- a", "not usable"),
        (WHOLE.replace("relative_l2", "relativ_l2"), "no such metric: relativ_l2"),
        (WHOLE.replace("1%", "1 percent"), "expected a share"),
        (WHOLE.replace("float32", "fp32"), "limits for fp32; known types"),
    ],
)
def test_a_broken_standard_is_refused(tmp_path, text, message):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        standards.load("mine", [tmp_path])
