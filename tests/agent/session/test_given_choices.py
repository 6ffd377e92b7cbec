"""The reference's choices in place of a run's own: what is recorded, what goes on, and where gradients go."""

import json

import pytest
import torch

from precflow.agent.capture.recorder import Recorder
from precflow.agent.dump.writer import Writer
from precflow.agent.failures import AgentError
from precflow.agent.request import CaptureSection
from precflow.agent.session.given_choices import GivenChoices
from precflow.dumps.formats import read_dump

SCORES = torch.tensor([[0.3, 0.2473, 0.2474], [0.1, 0.5, 0.4]])
TOPK = "(model)/topk.0/forward.output.1"
TWO_LARGEST = torch.tensor([[0, 1], [1, 2]])  # of the first row 0 and 2 are the largest


class Model(torch.nn.Module):
    def __init__(self, choose):
        super().__init__()
        self.choose = choose

    def forward(self, scores):
        return self.choose(scores)


@pytest.fixture
def choose(tmp_path):
    """Return a function that runs an operator with choices given: what it returned, and the dump of the run."""

    def run(choosing, given, *, scores=SCORES, record=TOPK, dimension=-1, levels=("module", "api")):
        content = given.contiguous().view(torch.uint8).numpy().tobytes()
        shard, listed, folder = tmp_path / "shard", tmp_path / "choices.json", tmp_path / "dump"
        shard.write_bytes(b"header" + content)
        stored = {"index": "1", "dtype": str(given.dtype).removeprefix("torch."), "shape": list(given.shape)}
        stored |= {"file": str(shard), "begin": 6, "bytes": len(content)}
        listed.write_text(json.dumps({"choices": [{"record": record, "dimension": dimension, "tensor": stored}]}))
        choices = GivenChoices.read(str(listed))
        folder.mkdir()
        writer, model = Writer(str(folder)), Model(choosing)
        with Recorder(writer, CaptureSection(level=levels), substitute=choices.substitute).watch(model):
            returned = model(scores)
        writer.seal({"side": "target", "dtype": "float32"})
        return returned, read_dump(folder), choices

    return run


def outputs(dump, operator, level="api"):
    call = next(call for call in dump.calls() if (call.operator, call.level) == (operator, level))
    return [dump.tensor(record).tolist() for record in call.outputs]


def test_the_own_choice_is_recorded_and_the_reference_s_goes_on_with_the_own_values(choose):
    (values, indices), dump, choices = choose(lambda scores: torch.topk(scores, 2), TWO_LARGEST)
    assert outputs(dump, "topk")[1] == [[0, 2], [1, 2]]
    assert indices.tolist() == TWO_LARGEST.tolist()
    assert values.tolist() == SCORES.gather(1, TWO_LARGEST).tolist()
    assert choices.replaced == [TOPK]


def test_what_takes_the_choice_is_recorded_with_the_reference_s_and_still_comes_from_the_operator(choose):
    _, dump, _ = choose(lambda scores: torch.topk(scores, 2).indices + 1, TWO_LARGEST)
    taker = next(call for call in dump.calls() if call.operator == "add")
    assert dump.tensor(taker.inputs[0]).tolist() == TWO_LARGEST.tolist()
    chooser = next(call for call in dump.calls() if call.operator == "topk")
    assert taker.inputs[0].source == (chooser.order, "1")


def test_the_gradient_goes_to_what_the_reference_chose(choose):
    scores = SCORES.clone().requires_grad_()
    (values, _), *_ = choose(lambda scores: torch.topk(scores, 2), TWO_LARGEST, scores=scores)
    values.sum().backward()
    assert scores.grad.tolist() == [[1, 1, 0], [0, 1, 1]]


@pytest.mark.parametrize(
    ("choosing", "operator", "given", "dimension", "values"),
    [
        (lambda scores: scores.max(dim=1), "max", torch.tensor([2, 1]), 1, [SCORES[0, 2], SCORES[1, 1]]),
        (lambda scores: scores.max(0, keepdim=True), "max", torch.tensor([[1, 1, 1]]), 0, [SCORES[1].tolist()]),
        (lambda scores: scores.median(dim=0), "median", torch.tensor([0, 0, 1]), 0, [SCORES[0, 0], SCORES[0, 1], SCORES[1, 2]]),
    ],
)
def test_values_follow_the_indices_along_their_dimension(choose, choosing, operator, given, dimension, values):
    record = f"(model)/{operator}.0/forward.output.1"
    (picked, indices), _, choices = choose(choosing, given, record=record, dimension=dimension)
    assert indices.tolist() == given.tolist()
    assert picked.tolist() == torch.tensor(values).tolist()
    assert choices.replaced == [record]


def test_masks_and_single_indices_are_replaced_as_they_are(choose):
    mask = torch.tensor([[True, False, True], [False, True, True]])
    returned, _, _ = choose(lambda scores: scores > 0.25, mask, record="(model)/gt.0/forward.output.0", dimension=None)
    assert returned.tolist() == mask.tolist()


def test_below_torch_functions_the_operator_s_own_choice_is_recorded_too(choose):
    record = "(model)/aten.topk.0/forward.output.1"
    returned, dump, choices = choose(
        lambda scores: torch.topk(scores, 2), TWO_LARGEST, record=record, levels=("api", "operator")
    )
    assert returned.indices.tolist() == TWO_LARGEST.tolist()
    assert outputs(dump, "topk", "operator")[1] == [[0, 2], [1, 2]]
    assert outputs(dump, "topk", "api")[1] == TWO_LARGEST.tolist(), "above, the choice is the reference's already"
    assert choices.replaced == [record]


@pytest.mark.parametrize(
    "given",
    [TWO_LARGEST[:1], TWO_LARGEST.int(), torch.tensor([[0, 3], [1, 2]]), torch.tensor([[0, 2], [1, 2]])],
    ids=["another shape", "another type", "an element that there is not", "the same"],
)
def test_what_is_no_other_choice_between_the_same_elements_stays(choose, given):
    returned, _, choices = choose(lambda scores: torch.topk(scores, 2), given)
    assert returned.indices.tolist() == [[0, 2], [1, 2]]
    assert choices.replaced == []


@pytest.mark.parametrize("text", ["{}", "[]", '{"choices": [{"record": "a"}]}', '{"choices": [{"dimension": "x"}]}'])
def test_a_file_that_holds_no_choices_is_refused(tmp_path, text):
    (tmp_path / "choices.json").write_text(text)
    with pytest.raises(AgentError, match="holds no choices"):
        GivenChoices.read(str(tmp_path / "choices.json"))
    with pytest.raises(AgentError, match="cannot read"):
        GivenChoices.read(str(tmp_path / "gone.json"))


def test_a_choice_that_is_gone_ends_the_run(choose, tmp_path):
    def lose_and_choose(scores):
        (tmp_path / "shard").write_bytes(b"")
        return torch.topk(scores, 2)

    with pytest.raises(AgentError, match=r"the reference's choice at .*topk"):
        choose(lose_and_choose, TWO_LARGEST)
