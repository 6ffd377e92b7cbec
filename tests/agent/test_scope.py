import pytest
import torch

from precflow.agent.failures import AgentError
from precflow.agent.scope import check_scope

MODEL = torch.nn.ModuleDict(
    {"encoder": torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()), "head": torch.nn.Linear(2, 2)}
)


@pytest.mark.parametrize("patterns", [["*"], ["encoder.*"], ["encoder", "head"], ["(model)"], ["(outside)"]])
def test_a_scope_with_modules_passes(patterns):
    assert check_scope(patterns, MODEL) is None


def test_an_empty_scope_offers_near_names():
    with pytest.raises(AgentError, match=r"\['encodr\.\*'\] matches no module of ModuleDict \(5 modules\)") as caught:
        check_scope(["encodr.*"], MODEL)
    assert "encoder" in caught.value.next_step


def test_a_scope_like_nothing_offers_the_outermost_names():
    with pytest.raises(AgentError) as caught:
        check_scope(["@@@"], MODEL)
    assert caught.value.next_step.endswith("(model), encoder, head")


def test_one_misspelt_pattern_among_others_is_not_missed_in_silence():
    with pytest.raises(AgentError, match=r"\['haed'\] matches no module") as caught:
        check_scope(["encoder.*", "haed"], MODEL)
    assert "head" in caught.value.next_step
