"""The end of a run without a verdict says what was found, and what comes next."""

import pytest

from precflow.report.unjudged import Unjudged, render

SIDE = {
    "torch": {"version": "2.6.0"},
    "python": {"version": "3.11.9"},
    "device": {"kind": "cpu"},
    "switches": {},
    "packages": {"numpy": "2"},
    "variables": {},
}


def show(reference=None, target=None, *, columns=80):
    facts = {"reference": SIDE | (reference or {}), "target": SIDE | (target or {})}
    run = Unjudged("x", ["environment.reference", "environment.target"], "runs/x/store", facts, (), "precflow +recipe=x")
    return "\n".join(render(run, columns=columns))


def test_what_was_made_and_what_comes_next_is_said():
    text = show()
    assert "   done        environment.reference, environment.target in runs/x/store" in text
    assert "   the same    torch, Python, packages" in text
    assert text.endswith("keeps what was made\n      precflow +recipe=x")


def test_differences_are_named_the_most_important_first():
    packages = {"numpy": "2"} | {f"library{number}": "1" for number in range(10)}
    text = show(target={"torch": {"version": "2.7.1"}, "packages": packages})
    assert "   different   torch.version   2.6.0 / 2.7.1" in text
    assert text.count(" / ") == 8
    assert "and 3 more differences" in text
    assert "the same   " not in text


def test_what_changes_numbers_is_a_warning():
    npu = {"device": {"kind": "npu"}, "switches": {"conv.allow_hf32": "True"}}
    text = show(target={**npu, "variables": {"HCCL_DETERMINISITIC": "1"}})
    assert "warning target: conv.allow_hf32=True: products of float32 are rounded to fewer digits" in " ".join(text.split())
    assert "HCCL_DETERMINISITIC" in text


@pytest.mark.parametrize("columns", [48, 80])
def test_lines_fit(columns):
    assert all(len(line) <= columns for line in show(target={"torch": {"version": "2.7.1"}}, columns=columns).split("\n"))
