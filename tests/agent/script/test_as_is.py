"""What is noted of a run as it is does not hang on how its optimizer was given the weights."""

import pytest
import torch

from precflow.agent.script.as_is import number_weights, summarize_gradients


@pytest.fixture
def weights():
    torch.manual_seed(1)
    made = [torch.nn.Parameter(torch.randn(shape)) for shape in ((4, 600), (600,), (4, 600), (7,))]
    for weight in made:
        weight.grad = torch.randn_like(weight)
    return made


def test_another_order_of_the_weights_is_the_same_sketch(weights):
    numbers = number_weights(weights)
    assert len(set(numbers.values())) == len(weights)
    norm, sketch = summarize_gradients(weights, numbers)
    other_norm, other = summarize_gradients(reversed(weights), number_weights(reversed(weights)))
    assert other_norm == pytest.approx(norm, rel=1e-12)
    assert other == pytest.approx(sketch, rel=1e-6, abs=1e-7)


def test_gradients_that_change_places_are_another_sketch(weights):
    numbers = number_weights(weights)
    _, sketch = summarize_gradients(weights, numbers)
    weights[0].grad, weights[2].grad = weights[2].grad, weights[0].grad
    assert summarize_gradients(weights, numbers)[1] != pytest.approx(sketch, rel=1e-3, abs=1e-3)


def test_weights_in_16_bits_have_the_numbers_of_those_they_were_rounded_from(weights):
    narrow = [torch.nn.Parameter(weight.detach().bfloat16()) for weight in weights]
    assert list(number_weights(narrow).values()) == list(number_weights(weights).values())
