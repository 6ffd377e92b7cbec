"""What users read when something cannot be done."""

import inspect

import pytest

from precflow import errors
from precflow.errors import ConfigError, DumpError, MissingExtraError, PrecflowError, Problem, SideError, TrustError


def test_message_place_and_next_step_stand_below_one_another():
    error = DumpError("the dump is torn", next_step="write it again").within("step 3").within("target")
    assert str(error) == "the dump is torn\n   step 3\n   target\n   write it again"


def test_what_is_not_known_leaves_no_empty_line():
    assert str(PrecflowError("it fell")) == "it fell"


def test_where_it_happened_is_added_to_the_same_error():
    error = DumpError("torn")
    assert error.within("target") is error


def test_all_problems_of_a_configuration_are_shown_in_columns():
    problems = [Problem("recipe.yaml:3", "stages", "is empty"), Problem("", "limits.float16", "is no number")]
    error = ConfigError("2 problems", problems=problems, next_step="precflow validate")
    assert str(error).splitlines() == [
        "2 problems",
        "   stages           is empty   (recipe.yaml:3)",
        "   limits.float16   is no number",
        " precflow validate",
    ]


def test_a_configuration_may_be_wrong_without_a_key():
    assert str(ConfigError("no such recipe")) == "no such recipe"


def test_a_side_shows_what_its_agent_wrote_last():
    error = SideError("the target crashed", log=["one", "two"], next_step="see agent.log")
    assert str(error) == "the target crashed\n   see agent.log\n   | one\n   | two"
    assert error.log == ("one", "two")


def test_a_missing_library_names_the_extra_that_brings_it():
    assert str(MissingExtraError("numba", "fast")) == "numba is not installed\n   pip install 'precflow[fast]'"


OWN = [each for _, each in inspect.getmembers(errors, inspect.isclass) if each.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", [each for each in OWN if each is not Problem])
def test_there_is_one_tree_and_it_is_drawn_where_it_is_defined(kind):
    assert issubclass(kind, PrecflowError)
    assert f"{kind.__name__} " in errors.__doc__


def test_what_is_not_trusted_is_a_matter_of_configuration():
    assert issubclass(TrustError, ConfigError)
