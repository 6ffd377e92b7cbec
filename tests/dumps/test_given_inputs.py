"""Were both sides given the same data? What a model made itself is none, and what came before other data is compared."""

import dump_builder as builder
import numpy as np
import pytest
import torch
from torch import nn

import precflow
from precflow.dumps.batches import STALE, compare_given
from precflow.dumps.formats import read_dump
from precflow.stages.two_dumps import compare_dumps

SAME = ("weights", "inputs")


class Decoder(nn.Module):
    """Gives scores of the next token; a fault multiplies what its layer gives."""

    def __init__(self, fault=1.0):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.layer, self.head = nn.Embedding(40, 16), nn.Linear(16, 16), nn.Linear(16, 40)
        self.fault = fault

    def forward(self, ids):
        return self.head(torch.tanh(self.layer(self.embed(ids)) * self.fault))


class Sampler(nn.Module):
    def __init__(self, fault=1.0):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.time = nn.Linear(16, 16), nn.Linear(16, 16)
        self.fault = fault

    def forward(self, x, timestep):
        phases = timestep.float()[:, None] * torch.linspace(1, 0.01, 16)
        return torch.tanh(self.inner(x) * self.fault + self.time(torch.cos(phases)))


@pytest.fixture
def both(tmp_path):
    """Return a function that records a loop on both sides and opens the dumps; the loop gets model, recording and side."""

    def record(make, loop, fault=1.0, **capture):
        dumps = []
        for side in ("reference", "target"):
            model = make(fault if side == "target" else 1.0).eval()
            with torch.no_grad(), precflow.capture(model, tmp_path / side, side=side, **capture) as recording:
                loop(model, recording, side)
            dumps.append(read_dump(tmp_path / side))
        return dumps

    return record


def generate(model, recording, side):
    ids = torch.tensor([[3, 17, 5], [8, 1, 30]])
    for _ in range(4):
        ids = torch.cat([ids, model(ids)[:, -1].argmax(-1, keepdim=True)], 1)
    recording.step()


def sample(cast, dtype=torch.float32):
    """Return a loop of a sampler whose target casts the times."""

    def loop(model, recording, side):
        x = torch.randn(4, 16, generator=torch.Generator().manual_seed(1))
        times = torch.tensor([1000.0, 800.0, 401.5, 100.0])
        for time in times:
            given = time.expand(4)
            x = x - 0.1 * model(x, cast(given) if side == "target" else given).to(dtype).float()
            recording.step()

    return loop


def rules(model):
    return [finding.rule for finding in model.findings]


def test_tokens_that_the_model_chose_are_no_data(both):
    reference, target = both(Decoder, generate, fault=-3.0)
    given = compare_given(reference, target)
    assert not given.different
    assert given.made[0] == "step0.call1.ids"
    model = compare_dumps(reference, target, command="", evaluates=False)
    assert (model.verdict.verdict, model.region.start) == ("misaligned", "(model) / mul")
    assert not {"PF402", "PF408"} & set(rules(model))
    assert "the model itself made what it was given" in " ".join(model.verdict.warnings)


def test_a_choice_that_no_record_shows_ends_the_comparison_and_what_came_before_counts(both):
    reference, target = both(Decoder, generate, fault=-3.0, level="module")
    model = compare_dumps(reference, target, command="", evaluates=False)
    assert (model.verdict.verdict, rules(model)[0]) == ("misaligned", "PF408")
    assert {row.measure.record.partition("/")[0] for row in model.rows} == {"embed", "layer", "head", "(model)"}


def test_a_model_that_agrees_up_to_another_choice_is_neither_aligned_nor_wrong(both):
    """The two best scores are nearer than any limit: the target's rounding decides otherwise."""

    def near_tie(fault):
        model = Decoder()
        with torch.no_grad():
            model.head.weight.zero_()
            model.head.bias.copy_(torch.arange(40) / 40)
            model.head.bias[38] = model.head.bias[39]
        if fault != 1.0:
            nudge = torch.zeros(40).index_fill_(0, torch.tensor([38]), 2e-7)
            model.head.register_forward_hook(lambda *given: given[-1] + nudge)
        else:
            nudge = torch.zeros(40).index_fill_(0, torch.tensor([39]), 2e-7)
            model.head.register_forward_hook(lambda *given: given[-1] + nudge)
        return model

    model = compare_dumps(*both(near_tie, generate, fault=2.0, level="module"), command="", evaluates=False)
    assert (model.verdict.verdict, rules(model)) == ("inconclusive", ["PF408"])
    assert "what it chose itself from step0.call1.ids on" in model.verdict.reasons[0]


@pytest.mark.parametrize("cast", [lambda time: time.bfloat16(), lambda time: time.bfloat16().float()])
def test_a_time_that_is_rounded_is_other_data_and_the_steps_before_are_compared(both, cast):
    reference, target = both(Sampler, sample(cast), step=[0, 1, 2, 3])
    given = compare_given(reference, target)
    assert [each.name for each in given.different] == ["step2.timestep"]  # the other times have at most 8 bits
    model = compare_dumps(reference, target, command="", evaluates=False)
    assert (model.verdict.verdict, rules(model)) == ("inconclusive", ["PF402"])
    assert "step2.timestep: 401.5" in model.findings[0].title
    assert {row.measure.module for row in model.rows if row.measure.record.endswith("@2.0")} == {"(outside)"}
    assert {row.judged.status for row in model.rows} == {"pass", "not_judged"}
    assert model.verdict.reasons[0].endswith("only what came before is compared")


def test_the_next_sample_is_a_consequence_of_the_models_fault(both):
    reference, target = both(Sampler, sample(lambda time: time), fault=1.5, step=[0, 1, 2, 3])
    given = compare_given(reference, target)
    assert (given.different, given.made) == ((), ("step1.x", "step2.x", "step3.x"))
    model = compare_dumps(reference, target, command="", evaluates=False)
    assert (model.verdict.verdict, model.region.start) == ("misaligned", "(model) / mul.1")


def test_equal_tokens_in_another_type_are_the_same_data(both):
    def loop(model, recording, side):
        ids = torch.tensor([[3, 17, 5], [8, 1, 30]])
        model(ids.int() if side == "target" else ids)
        recording.step()

    model = compare_dumps(*both(Decoder, loop), command="", evaluates=False)
    assert (model.verdict.verdict, model.rows != ()) == ("aligned", True)
    assert "step0.ids: int64 / int32, of equal values" in " ".join(model.verdict.warnings)


def test_pictures_that_differ_have_advice_for_pictures(both):
    class Tower(nn.Module):
        def __init__(self, fault):
            super().__init__()
            torch.manual_seed(0)
            self.patch = nn.Conv2d(3, 4, 4, 4)

        def forward(self, pixel_values):
            return self.patch(pixel_values)

    def loop(model, recording, side):
        pictures = torch.rand(1, 3, 19, 21, generator=torch.Generator().manual_seed(3))
        scaled = nn.functional.interpolate(pictures, size=(8, 8), mode="bilinear", antialias=side == "reference")
        model(pixel_values=scaled)
        recording.step()

    model = compare_dumps(*both(Tower, loop, level="module"), command="", evaluates=False)
    (finding,) = model.findings
    assert (model.verdict.verdict, model.rows, finding.rule) == ("inconclusive", (), "PF402")
    assert "antialias" in finding.fix
    assert "tokens" not in finding.fix


class Sees(nn.Module):
    """A model of pictures, or of tokens."""

    def __init__(self, fault):
        super().__init__()
        torch.manual_seed(0)
        self.patch, self.embed = nn.Conv2d(3, 4, 4, 4), nn.Embedding(90, 4)

    def forward(self, pixel_values):
        return self.patch(pixel_values) if pixel_values.ndim > 2 else self.embed(pixel_values)


PICTURES = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(3))
MEAN, STD = (torch.tensor(each).view(1, 3, 1, 1) for each in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
TOKENS = torch.tensor([[5, 17, 31, 8, 22, 40, 0, 0], [9, 64, 12, 77, 51, 33, 80, 0]])
PADDED_LEFT = torch.tensor([[0, 0, 5, 17, 31, 8, 22, 40], [0, 9, 64, 12, 77, 51, 33, 80]])


@pytest.mark.parametrize(
    ("given", "other", "told", "advice"),
    [
        (PICTURES, PICTURES.flip(1), "channels in the order 2, 1, 0", "BGR"),
        (
            (PICTURES - MEAN) / STD,
            (PICTURES.flip(1) - MEAN) / STD,
            "channels in the order 2, 1, 0; channels multiplied by 0.9825, 1, 1.018, then -0.345, 0, 0.3511 added",
            "BGR",
        ),
        ((PICTURES - MEAN) / STD, PICTURES - MEAN, "channels multiplied by 0.229, 0.224, 0.225", "standard deviation"),
        (PICTURES, PICTURES * 255, "each value multiplied by 255", "standard deviation"),
        (PICTURES, PICTURES.flip(3), "flipped along axis 3", "flips"),
        (TOKENS, PADDED_LEFT, "padded on the left in place of the right, with 0", "padding_side"),
    ],
)
def test_a_preparation_that_can_be_named_is_named(both, given, other, told, advice):
    def loop(model, recording, side):
        model(other if side == "target" else given)
        recording.step()

    model = compare_dumps(*both(Sees, loop, level="module", detail="tensors"), command="", evaluates=False)
    (finding,) = model.findings
    assert (model.verdict.verdict, model.rows, finding.rule) == ("inconclusive", (), "PF417")
    assert (finding.title, finding.certainty) == (f"step0.pixel_values is the reference's, {told}", "certain")
    assert advice in finding.fix


@pytest.mark.parametrize(
    ("other", "rule", "told"),
    [
        (PICTURES * 255, "PF417", "step0.pixel_values is the reference's, each value multiplied by 255"),
        (PICTURES * 2 - 1, "PF417", "step0.pixel_values is the reference's, each value multiplied by 2, then -1 added"),
        (PICTURES.flip(1), "PF402", "1 input differs, first step0.pixel_values"),
    ],
)
def test_sketches_tell_one_factor_and_one_amount_and_nothing_more(both, other, rule, told):
    def loop(model, recording, side):
        model(other if side == "target" else PICTURES)
        recording.step()

    (finding,) = compare_dumps(*both(Sees, loop, level="module", detail="sketch"), command="", evaluates=False).findings
    assert (finding.rule, finding.title) == (rule, told)
    assert ("capture=tensors" in finding.fix) == (rule == "PF402")


def entry(array):
    return {"content": builder.content_of(array), "dtype": array.dtype.name, "shape": list(array.shape)}


@pytest.fixture
def given_by_hand(tmp_path):
    """Return a function that writes both dumps by hand and compares what their models were given."""

    def write(fill, inputs):
        dumps = []
        for side in ("reference", "target"):
            made = builder.DumpBuilder(tmp_path / side, side=side)
            fill(made, side)
            entries = {name: entry(array) for name, array in inputs(side).items()}
            made.header_changes["inputs"] = {"digest": side, "entries": entries}
            dumps.append(read_dump(made.write()))
        return dumps

    return write


X = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)


def test_a_wrappers_names_of_inputs_are_those_of_the_model_inside(given_by_hand):
    def inputs(side):
        return {"step0.ids": X, "step0.mask": X * 2} if side == "reference" else {"step0.inputs.1": X * 2, "step0.inputs.0": X}

    dumps = given_by_hand(lambda made, _: made.call("", "", [X * 3], {"0": X, "1": X * 2}), inputs)
    assert compare_given(*dumps).entries == dumps[0].header.inputs.entries


@pytest.mark.parametrize(("name", "is_renamed"), [("inputs.1", True), ("labels", False)])
def test_an_input_of_another_name_is_another_input_unless_it_goes_by_its_position(given_by_hand, name, is_renamed):
    """The reference is given the decoder's tokens, the target labels that it makes them of."""

    def inputs(side):
        return {"step0.ids": X, **({"step0.decoder_input_ids": X * 2} if side == "reference" else {f"step0.{name}": X * 3})}

    dumps = given_by_hand(lambda made, _: made.call("", "", [X * 3], {"0": X, "1": X * 2}), inputs)
    assert ("step0.decoder_input_ids" in compare_given(*dumps).entries) is is_renamed
    told = [finding.title for finding in compare_dumps(*dumps, command="", evaluates=False).findings if finding.rule == "PF402"]
    assert (told == ["1 input differs, first step0.decoder_input_ids"]) is is_renamed


@pytest.mark.parametrize("is_stale", [False, True])
def test_what_another_rank_sent_is_no_data_unless_it_is_another_steps(given_by_hand, is_stale):
    """A pipeline: the first stage runs on rank 0 with another rounding on each side, the second takes what it sent."""
    received = {}

    def fill(made, side):
        sent = []
        for step in (0, 1):
            sent.append((X + step) * np.float32(3 if side == "reference" else 3.1))
            made.call("", "", [sent[step]], [X + step], step=step)
            taken = received[side, step] = sent[max(step - 1, 0)] if is_stale and side == "target" else sent[step]
            made.call("", "", [taken * 2], [taken], step=step, rank=1)

    def inputs(side):
        return {
            f"{'rank1.' * rank}step{step}.x": received[side, step] if rank else X + step for step in (0, 1) for rank in (0, 1)
        }

    dumps = given_by_hand(fill, inputs)
    given = compare_given(*dumps)
    if is_stale:
        assert [(each.name, each.kind) for each in given.different] == [("rank1.step1.x", STALE)]
        assert "forward.output.0@1.0 on the reference, (model)/forward.output.0 on the target" in given.different[0].words
        model = compare_dumps(*dumps, command="", evaluates=False)
        assert (model.verdict.verdict, model.findings[0].rule) == ("misaligned", "PF412")
        assert any(reason.startswith("rank1.step1.x is an output of another step") for reason in model.verdict.reasons)
        meant = compare_dumps(*dumps, command="", same=("weights",), evaluates=False)
        assert not any("another step" in reason for reason in meant.verdict.reasons)
    else:
        assert (given.different, given.made) == ((), ("rank1.step0.x", "rank1.step1.x"))


@pytest.mark.parametrize(("fault", "states"), [(1.5, ("misaligned", "starts")), (1.0, ("starts", "aligned"))])
def test_a_fault_before_other_data_is_the_part_that_is_guilty(tmp_path, fault, states):
    """Other tokens in step 1 do not excuse the forward of step 0."""
    dumps = []
    for side in ("reference", "target"):
        model = Decoder(fault if side == "target" else 1.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with precflow.capture(model, tmp_path / side, optimizer=optimizer, level="module", step=[0, 1]) as recording:
            for step in (0, 1):
                ids = torch.tensor([[3, 17, 5]]) + (step if side == "target" else 0)
                optimizer.zero_grad()
                model(ids).square().mean().backward()
                optimizer.step()
                recording.step()
        dumps.append(read_dump(tmp_path / side))
    found = {state.name: state.state for state in compare_dumps(*dumps, command="", evaluates=False).phases}
    assert (found["data"], found["forward"]) == states


def test_a_further_forward_is_no_other_batch(tmp_path):
    dumps = []
    for side in ("reference", "target"):
        model = Decoder()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with precflow.capture(model, tmp_path / side, optimizer=optimizer, level="module") as recording:
            if side == "target":
                with torch.no_grad():
                    model(torch.tensor([[1, 2]]))
            model(torch.tensor([[3, 17, 5]])).square().mean().backward()
            optimizer.step()
            recording.step()
        dumps.append(read_dump(tmp_path / side))
    model = compare_dumps(*dumps, command="", evaluates=False)
    assert (model.verdict.verdict, rules(model)) == ("inconclusive", ["PF409"])
    assert "only the target has call 0 of step 0, without a gradient" in model.findings[0].title
    assert model.verdict.reasons[0] == "only the target has call 0 of step 0, without a gradient"
    assert set(model.verdict.counts) == {"pass", "unpaired_target"}
