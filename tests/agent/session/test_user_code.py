import json

import pytest
import torch

from precflow.agent.session import user_code
from precflow.agent.workloads import stable_diffusion


def test_whose_lines_are_whose():
    assert user_code.is_users(__file__)
    assert user_code.is_users(stable_diffusion.__file__)
    assert user_code.is_users("/home/ann/torch/model.py")
    assert not user_code.is_users(torch.nn.functional.__file__)
    assert not user_code.is_users(user_code.__file__)
    assert not user_code.is_users(json.encoder.__file__)
    assert not user_code.is_users("<frozen importlib._bootstrap>")
    assert user_code.is_users(pytest.__file__), "what is installed may be a model"


def test_an_error_inside_torch_is_placed_at_the_users_call():
    with pytest.raises(RuntimeError) as caught:
        torch.nn.functional.linear(torch.ones(2), torch.ones(3, 3))
    assert user_code.place_of_error(caught.value).startswith("test_user_code.py:")
    assert user_code.place_of_error(caught.value).endswith("in test_an_error_inside_torch_is_placed_at_the_users_call")


def test_the_line_that_is_running():
    assert user_code.running_place().endswith("in test_the_line_that_is_running")


@pytest.mark.parametrize(
    ("said", "text"),
    [("One thing. Another.\nMore.", "ValueError: One thing. Another. ("), ("", "ValueError: without a message (")],
)
def test_an_error_in_one_line_ends_in_its_place(said, text):
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the message is what is looked at
        raise ValueError(said)
    assert user_code.error_text(caught.value).startswith(text + "test_user_code.py:")
    assert user_code.error_text(caught.value, sentence=True).startswith(text.replace(". Another.", "") + "test_user_code.py:")
