import pytest

from precflow.config import key_tree
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
    assert key_tree.explain_problem(tuple(key.split("."))) == ""


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
    assert said in key_tree.explain_problem(tuple(key.split(".")))


@pytest.mark.parametrize("key", ["capture.slowdown", "target.layout", "determinism.shuffle", "time_limit"])
def test_keys_of_a_later_version_are_named_as_such(key):
    assert key_tree.explain_problem(tuple(key.split("."))) == "no such key. precflow 0.1.0 does not have it yet"


def test_all_keys_of_a_small_section_are_named_where_none_is_alike():
    assert key_tree.explain_problem(("scan", "source")) == "no such key. There are  scan.tree, scan.dtype"
    assert "Did you mean  scan.tree ?" in key_tree.explain_problem(("scan", "treee"))
    assert "Did you mean  target.device ?" in key_tree.explain_problem(("scan", "device"))  # the same word elsewhere


def test_nothing_far_away_is_suggested():
    assert key_tree.explain_problem(("target", "foo")) == "no such key."


def test_leaves_are_dotted_and_complete():
    assert {"about.title", "tolerance.relative_l2", "accepted", "target.dtype", "output"} <= set(key_tree.list_keys())


def test_types_are_seen():
    assert key_tree.is_section(Limits)
    assert not key_tree.is_section(int)
    assert key_tree.without_none(key_tree.fields(Limits)["relative_l2"]) is Share
    assert key_tree.item(key_tree.fields(Side)["device"]) is str
    assert key_tree.item(key_tree.fields(Side)["variables"]) is str
    assert key_tree.item(int) is None
