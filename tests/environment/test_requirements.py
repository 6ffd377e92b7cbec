"""Requirements of a recipe against the facts of a side."""

import pytest

from precflow.config.schema import Bytes, Requirements
from precflow.environment.requirements import find_missing, refuse_missing
from precflow.errors import PrecflowError

FACTS = {"torch": {"version": "2.13.0+cpu"}, "python": {"version": "3.11.9"}}


def test_what_is_there_is_no_problem():
    assert find_missing(Requirements(free_disk=Bytes(10), torch=">=2.1,<3", python=">=3.8"), FACTS, 11) == []


def test_nothing_required_needs_no_facts():
    assert find_missing(Requirements(), {}, 0) == []


@pytest.mark.parametrize(
    ("require", "problem"),
    [
        (Requirements(torch=">=3"), "torch >=3 is required, 2.13.0+cpu is here"),
        (Requirements(python="<3.9"), "python <3.9 is required, 3.11.9 is here"),
        (Requirements(free_disk=Bytes(20_000_000_000)), "20.0 GB of free disk are required, 1.0 GB are free"),
        (Requirements(torch="two"), "environment.require.torch is 'two'; expected a version specifier such as '>=2.1'"),
    ],
)
def test_what_is_missing_is_said(require, problem):
    assert find_missing(require, FACTS, 1_000_000_000) == [problem]


def test_what_is_missing_stops_a_side_and_names_the_keys():
    refuse_missing("target", [])
    with pytest.raises(PrecflowError, match="the target side does not have what the recipe requires: no torch") as refused:
        refuse_missing("target", ["no torch"])
    assert "environment.require" in refused.value.next_step


def test_a_version_that_is_not_known_is_a_problem():
    (problem,) = find_missing(Requirements(torch=">=2"), {}, 0)
    assert "does not say its version" in problem


def test_a_local_build_and_a_nightly_count_as_their_version():
    nightly = {"torch": {"version": "2.14.0.dev20261101+cu130"}}
    assert find_missing(Requirements(torch=">=2.13"), nightly, 0) == []


def test_all_problems_come_at_once():
    assert len(find_missing(Requirements(free_disk=Bytes(5), torch=">=3", python=">=4"), FACTS, 1)) == 3
