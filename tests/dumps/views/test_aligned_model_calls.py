"""A model that one side calls once more: all other calls are still compared with their partners."""

import pytest
import torch
from torch import nn

import precflow
from precflow.dumps.batches import CALLS, find_given
from precflow.dumps.formats import read_dump
from precflow.dumps.views.aligned_model_calls import NOTHING_FURTHER, pair_model_calls
from precflow.dumps.views.same_start import see_same_start
from precflow.stages.two_dumps import compare_dumps

BATCH, OTHER, SAMPLE = torch.tensor([[3, 17, 5]]), torch.tensor([[8, 1, 30]]), torch.tensor([[1, 2]])


class Decoder(nn.Module):
    """Gives scores of the next token; a fault multiplies what its last layer gives."""

    def __init__(self, fault=1.0):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.layer, self.head = nn.Embedding(40, 16), nn.Linear(16, 16), nn.Linear(16, 40)
        self.fault = fault

    def forward(self, ids):
        hidden = self.embed(ids)
        for _ in range(ids.shape[1] - 1):  # a module that runs less often in the call of a shorter sample
            hidden = torch.tanh(self.layer(hidden))
        return self.head(hidden) * self.fault


@pytest.fixture
def both(tmp_path):
    """Return a function that records a step on both sides, given what each side's model is called with, and opens the dumps.

    A tuple is a call whose output is trained, anything else one without a gradient.
    """

    def record(reference, target, fault=1.0, **capture):
        dumps = []
        for side, given in (("reference", reference), ("target", target)):
            model = Decoder(fault if side == "target" else 1.0)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            with precflow.capture(model, tmp_path / side, optimizer=optimizer, overwrite=True, **capture) as recording:
                for each in given:
                    if isinstance(each, tuple):
                        model(*each).square().mean().backward()
                    else:
                        with torch.no_grad():
                            model(each)
                optimizer.step()
                recording.step()
            dumps.append(read_dump(tmp_path / side))
        return dumps

    return record


def pairs(dumps, place=(0, 0)):
    """Return the numbers that the target's calls get."""
    found = pair_model_calls(*dumps).numbers
    return [number for (rank, step, _), number in sorted(found.items()) if (rank, step) == place]


def test_calls_are_paired_by_what_they_are_given(both):
    dumps = both([(BATCH,), (OTHER,)], [SAMPLE, (BATCH,), (OTHER,)], level="module")
    assert pairs(dumps)[1:] == [0, 1]
    (further,) = pair_model_calls(*dumps).further
    assert further.text == "only the target has call 0 of step 0, without a gradient"
    reference, target = see_same_start(*dumps, ("weights", "inputs"))
    assert reference.header.inputs == target.header.inputs
    numbers = [call.call for call in target.calls() if (call.module, call.phase) == ("layer", "forward")]
    assert numbers == [4, 0, 1, 2, 3]  # the sample's own call first, which is the reference's fifth and last


def test_of_two_calls_with_the_same_batch_the_one_with_a_gradient_is_the_partner(both):
    assert pairs(both([(BATCH,)], [BATCH, (BATCH,)], level="module"))[1] == 0
    dumps = both([(BATCH,)], [(BATCH,), BATCH], level="module")
    assert pairs(dumps)[0] == 0
    assert pair_model_calls(*dumps).further[0].calls == (1,)


def test_a_further_call_of_the_reference_keeps_its_number(both):
    dumps = both([SAMPLE, (BATCH,)], [(BATCH,)], level="module")
    assert pairs(dumps) == [1]
    model = compare_dumps(*dumps, command="", evaluates=False)
    assert set(model.verdict.counts) == {"pass", "unpaired_reference"}
    assert model.verdict.verdict == "inconclusive"


def test_what_can_be_paired_in_several_ways_is_other_data(both):
    dumps = both([BATCH, (OTHER,)], [BATCH, (SAMPLE,), (SAMPLE + 1,)], level="module")
    assert pair_model_calls(*dumps) == NOTHING_FURTHER
    assert find_given(see_same_start(*dumps, ("inputs",))[1]).different[0].name == "step0.call1.ids"


def test_calls_between_partners_are_compared_though_they_are_given_other_data(both):
    """The second call has another batch on the target; that is told, and not that it is further."""
    dumps = both([BATCH, (OTHER,)], [SAMPLE, BATCH, (OTHER + 1,)], level="module")
    given = find_given(see_same_start(*dumps, ("inputs",))[1])
    assert ([each.name for each in given.different], [one.calls for one in given.further]) == (["step0.call1.ids"], [(0,)])
    model = compare_dumps(*dumps, command="", evaluates=False)
    assert "PF402" in {finding.rule for finding in model.findings}
    assert {row.measure.module for row in model.rows if row.judged.status == "pass"} >= {"embed", "layer", "head"}


def test_without_the_calls_of_the_model_itself_nothing_is_renumbered(both):
    dumps = both([(BATCH,)], [SAMPLE, (BATCH,)], level="module", scope=["layer"])
    found = pair_model_calls(*dumps)
    assert (found.modules, [one.placed for one in found.further]) == ({}, [False])
    assert find_given(see_same_start(*dumps, ("inputs",))[1]).different[0].kind == CALLS
    model = compare_dumps(*dumps, command="", evaluates=False)
    assert (model.verdict.verdict, model.findings[0].rule) == ("inconclusive", "PF409")


@pytest.mark.parametrize("longer", ["reference", "target"])
@pytest.mark.parametrize("level", ["module", ["module", "api"]])
def test_a_fault_behind_a_further_call_is_found_where_it_is(both, longer, level):
    sides = {"reference": [(BATCH,)], "target": [(BATCH,)]}
    sides[longer] = [SAMPLE, *sides[longer]]
    model = compare_dumps(*both(*sides.values(), fault=1.01, level=level), command="", evaluates=False)
    call = "~1" if longer == "reference" else ""
    assert model.verdict.verdict == "misaligned"
    assert model.region.start == (f"(model){call}" if level == "module" else f"(model){call} / mul")
    assert "PF409" in {finding.rule for finding in model.findings}
    passed = {row.measure.record for row in model.rows if row.judged.status == "pass"}
    assert {f"head{call}/forward.output.0", f"embed{call}/forward.output.0"} <= passed
