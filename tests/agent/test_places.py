import json

import pytest
import torch

from precflow.agent import places
from precflow.agent.workloads import stable_diffusion


def test_whose_lines_are_whose():
    assert places.is_users(__file__)
    assert places.is_users(stable_diffusion.__file__)
    assert places.is_users("/home/ann/torch/model.py")
    assert not places.is_users(torch.nn.functional.__file__)
    assert not places.is_users(places.__file__)
    assert not places.is_users(json.encoder.__file__)
    assert not places.is_users("<frozen importlib._bootstrap>")
    assert places.is_users(pytest.__file__), "what is installed may be a model"


def test_an_error_inside_torch_is_placed_at_the_users_call():
    with pytest.raises(RuntimeError) as caught:
        torch.nn.functional.linear(torch.ones(2), torch.ones(3, 3))
    assert places.place_of_error(caught.value).startswith("test_places.py:")
    assert places.place_of_error(caught.value).endswith("in test_an_error_inside_torch_is_placed_at_the_users_call")


def test_the_line_that_is_running():
    assert places.running_place().endswith("in test_the_line_that_is_running")


@pytest.mark.parametrize(
    ("said", "text"),
    [("One thing. Another.\nMore.", "ValueError: One thing. Another. ("), ("", "ValueError: without a message (")],
)
def test_an_error_in_one_line_ends_in_its_place(said, text):
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the message is what is looked at
        raise ValueError(said)
    assert places.error_text(caught.value).startswith(text + "test_places.py:")
    assert places.error_text(caught.value, sentence=True).startswith(text.replace(". Another.", "") + "test_places.py:")
