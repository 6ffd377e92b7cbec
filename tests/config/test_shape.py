import pytest

from precflow.config import shape
from precflow.config.schema import Limits, Share, Side


@pytest.mark.parametrize(
    "key",
    [
        "target.dtype",
        "target.variables.ANYTHING",
        "workload.model.a.b.c",
        "tolerance.rules.0.match",
        "capture.step.0",
        "emulate.rules.0.x",
    ],
)
def test_keys_that_exist(key):
    assert shape.problem_at(tuple(key.split("."))) == ""


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("targt.dtype", "target.dtype"),
        ("target.dtyp", "target.dtype"),
        ("tolerance.rules.0.mach", "tolerance.rules[0].match"),
        ("target.dtype.x", "one value"),
        ("tolerance.rules.first", "list"),
        ("dtype", "dtype"),
        ("qqqq", "no such key."),
    ],
)
def test_keys_that_do_not(key, said):
    assert said in shape.problem_at(tuple(key.split(".")))


@pytest.mark.parametrize("key", ["golden.device", "curves.loss", "target.ranks", "workload.script", "site.store_profile"])
def test_keys_of_a_later_version_are_named_as_such(key):
    assert shape.problem_at(tuple(key.split("."))) == "no such key. precflow 0.1.0 does not have it yet"


def test_nothing_far_away_is_suggested():
    assert shape.problem_at(("target", "foo")) == "no such key."


def test_leaves_are_dotted_and_complete():
    assert {"about.title", "tolerance.relative_l2", "accepted", "target.dtype", "output"} <= set(shape.leaves())


def test_types_are_seen():
    assert shape.is_section(Limits)
    assert not shape.is_section(int)
    assert shape.without_none(shape.fields(Limits)["relative_l2"]) is Share
    assert shape.item(shape.fields(Side)["device"]) is str
    assert shape.item(shape.fields(Side)["variables"]) is str
    assert shape.item(int) is None
