import json

import pytest
import torch

from precflow.agent.session import user_code
from precflow.agent.workloads import stable_diffusion


def test_whose_lines_are_whose():
    assert user_code.is_user_code(__file__)
    assert user_code.is_user_code(stable_diffusion.__file__)
    assert user_code.is_user_code("/home/ann/torch/model.py")
    assert not user_code.is_user_code(torch.nn.functional.__file__)
    assert not user_code.is_user_code(user_code.__file__)
    assert not user_code.is_user_code(json.encoder.__file__)
    assert not user_code.is_user_code("<frozen importlib._bootstrap>")
    assert user_code.is_user_code(pytest.__file__), "what is installed may be a model"


def test_an_error_inside_torch_is_placed_at_the_users_call():
    with pytest.raises(RuntimeError) as caught:
        torch.nn.functional.linear(torch.ones(2), torch.ones(3, 3))
    assert user_code.find_error_line(caught.value).startswith("test_user_code.py:")
    assert user_code.find_error_line(caught.value).endswith("in test_an_error_inside_torch_is_placed_at_the_users_call")


def test_the_line_that_is_running():
    assert user_code.find_running_line().endswith("in test_the_line_that_is_running")


@pytest.mark.parametrize(
    ("said", "text"),
    [("One thing. Another.\nMore.", "ValueError: One thing. Another. ("), ("", "ValueError: without a message (")],
)
def test_an_error_in_one_line_ends_in_its_place(said, text):
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the message is what is looked at
        raise ValueError(said)
    assert user_code.describe_error(caught.value).startswith(text + "test_user_code.py:")
    first = text.replace(". Another.", "")
    assert user_code.describe_error(caught.value, sentence=True).startswith(first + "test_user_code.py:")
