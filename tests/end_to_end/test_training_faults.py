"""Faults of training migrations, planted one by one: the guilty phase is always told, the cause where evidence supports it.

Both sides run in this process, without a judge around them: a fault takes half a second.
"""

import copy
import io
import os
import random
import sys
from pathlib import Path

import pytest
import torch

import precflow
from precflow.agent import request as requests
from precflow.agent.devices.cpu import Cpu
from precflow.agent.events import Events
from precflow.agent.session.dump import dump
from precflow.config.schema import Tolerance
from precflow.diagnosis.training.phases import find_guilty
from precflow.dumps.formats import read_dump
from precflow.stages.two_dumps import compare_dumps

WORKLOADS = Path(__file__).parent / "workloads"
PARTS = ("model", "inputs", "loss", "optimizer")

SETTINGS = {"optimizer_eps", "betas", "decay_groups", "schedule_off_by_one", "activation", "norm_eps"}
TABLE = [  # fault, guilty phase, rule that names the cause ("" where none does)
    ("loss_division", "loss", "PF804"),
    ("reduction_type", "loss", "PF804"),
    ("norm_eps", "forward", "PF214"),
    ("activation", "forward", ""),
    ("backward_operator", "backward", ""),
    ("accumulation", "optimizer", "PF805"),
    ("clipping_type", "optimizer", "PF805"),
    ("clipping_limit", "optimizer", "PF805"),
    ("bf16_main_gradients", "optimizer", "PF806"),
    ("optimizer_eps", "optimizer", "PF801"),
    ("betas", "optimizer", "PF801"),
    ("decay_groups", "optimizer", "PF801"),
    ("schedule_off_by_one", "optimizer", "PF807"),
    ("hidden_eps", "optimizer", "PF802"),
    ("hidden_beta", "optimizer", "PF802"),
    ("hidden_rate", "optimizer", "PF802"),
    ("weight_overwritten", "optimizer", "PF803"),
    ("lost_update", "optimizer", "PF810"),
    ("frozen", "optimizer", "PF810"),
    ("other_parameters", "optimizer", "PF810"),
    ("shuffled_data", "data", "PF417"),
]


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """Return a function that records a side with a fault; torch's and Python's state is as it was afterwards."""
    folder = tmp_path_factory.mktemp("planted")
    variables, path = dict(os.environ), list(sys.path)
    states = random.getstate(), torch.get_rng_state()

    def recorded(side, fault=""):
        output = folder / f"{side}-{fault or 'clean'}"
        if output.exists():
            return read_dump(output)
        output.mkdir()
        plain = {
            "schema": 1,
            "action": "dump",
            "side": side,
            "output": str(output),
            "workload": {"mode": "train", **{part: {"_target_": f"planted.{part}", "fault": fault} for part in PARTS}},
            "determinism": {"algorithms": "native", "repeat": False},
            "capture": {"level": ["module"], "phase": ["forward", "backward", "gradient", "optimizer"], "step": [0, 1]},
            "trusted": ["planted"],
            "import_paths": [str(WORKLOADS)],
        }
        plain["workload"]["model"]["_target_"] = "planted.build"
        dump(requests.parse(plain), Cpu(), torch.device("cpu"), Events(io.StringIO()))
        return read_dump(output)

    yield recorded
    os.environ.clear()
    os.environ.update(variables)
    sys.path[:] = path
    sys.modules.pop("planted", None)
    random.setstate(states[0])
    torch.set_rng_state(states[1])


@pytest.fixture(scope="module")
def clean(record):
    return record("reference")


def test_without_a_fault_every_phase_is_aligned_and_no_rule_speaks(record, clean):
    model = compare_dumps(clean, record("target"), command="")
    assert {phase.state for phase in model.phases} == {"aligned"}
    assert {check.state for check in model.procedure} == {"agrees"}
    assert model.findings == ()


@pytest.mark.parametrize(("fault", "phase", "rule"), TABLE)
def test_the_guilty_phase_is_told_and_the_cause_where_evidence_supports_it(record, clean, fault, phase, rule):
    model = compare_dumps(clean, record("target", fault), command="")
    states = {one.name: one.state for one in model.phases}
    assert find_guilty(model.phases) == phase, states
    rules = [finding.rule for finding in model.findings]
    assert not rule or rule in rules, rules
    assert [check.state for check in model.procedure].count("differs") == 1
    # What one finding explains is not explained again.
    assert not {"PF801", "PF802", "PF803", "PF810"} & {*rules} or not {"PF211", "PF299"} & {*rules}
    assert "PF203" not in rules or fault in SETTINGS  # it compares each parameter's step with the same parameter's


@pytest.mark.parametrize(
    ("fault", "title"),
    [
        ("frozen", "2 parameters, first wide.weight, move on the reference only, from step 0 on: frozen on the target"),
        (
            "other_parameters",
            "8 parameters, first norm.weight, move on the reference only, from step 0 on: in no optimizer that steps",
        ),
        ("lost_update", "wide.weight moves on the reference only, from step 0 on: lost on the target"),
    ],
)
def test_parameters_that_are_not_updated_are_named_with_the_reason_and_nothing_else_is_blamed(record, clean, fault, title):
    model = compare_dumps(clean, record("target", fault), command="")
    first = model.findings[0]
    assert first.title.startswith(title)
    assert (first.rule, first.certainty) == ("PF810", "certain" if fault != "lost_update" else "likely")
    # Nor are gradients that are wrong by themselves: an optimizer clears only those of the parameters that it holds.
    assert not {"PF204", "PF211", "PF299", "PF602"} & {finding.rule for finding in model.findings}
    assert model.region.start.endswith(" (optimizer)")
    assert any("move" in text for text in model.verdict.reasons)
    assert {check.name: check.state for check in model.procedure}["hyperparameters"] == (
        "agrees" if fault == "lost_update" else "not_told"
    )


@pytest.fixture
def train(tmp_path):
    """Return a function that trains two steps by hand and keeps them; the loss is scaled, and gradients are scaled back."""

    def trained(side, *, clears=True, scale=512.0):
        torch.manual_seed(2)
        net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        with precflow.capture(net, tmp_path / side, optimizer=optimizer, step=[0, 1], detail="sketch") as recorder:
            for step in range(2):
                batch = torch.randn(4, 8, generator=torch.Generator().manual_seed(step))
                if clears:
                    optimizer.zero_grad()
                (net(batch).square().mean() * scale).backward()
                for parameter in net.parameters():
                    parameter.grad.div_(scale)
                optimizer.step()
                recorder.step()
        return read_dump(tmp_path / side)

    return trained


WIDE = Tolerance(standards=["default"], relative_l2=0.05)


@pytest.mark.parametrize("sides", [("reference", "target"), ("target", "reference")])
def test_gradients_that_are_not_cleared_are_misaligned_however_little_a_loss_scale_leaves_of_them(train, sides):
    dumps = {side: train(side, clears=side == sides[0]) for side in ("reference", "target")}
    model = compare_dumps(dumps["reference"], dumps["target"], command="", tolerance=WIDE)
    assert model.verdict.verdict == "misaligned"
    assert f"the {sides[1]} does not clear its gradients: in step 1 they still hold those of the step before" in (
        model.verdict.reasons
    )
    assert [(finding.rule, finding.certainty) for finding in model.findings] == [("PF813", "certain")]
    assert find_guilty(model.phases) == "backward"


@pytest.mark.parametrize("clears", [True, False])
def test_gradients_that_both_sides_clear_or_neither_does_are_no_finding(train, clears):
    dumps = train("reference", clears=clears), train("target", clears=clears, scale=256.0)
    model = compare_dumps(*dumps, command="", tolerance=WIDE)
    assert "PF813" not in {finding.rule for finding in model.findings}
    assert not any("clear" in reason for reason in model.verdict.reasons)


@pytest.fixture
def train_on_tokens(tmp_path):
    """Return a function that trains one step on texts with a prompt and padding, in bfloat16 where autocast has it so."""

    def trained(side, *, find_loss):
        torch.manual_seed(2)
        net = torch.nn.Sequential(torch.nn.Embedding(40, 16), torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 40))
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        tokens = torch.randint(1, 40, (3, 14))
        labels = tokens.clone()
        labels[:, :3] = labels[:, 11:] = -100
        with precflow.capture(net, tmp_path / side, optimizer=optimizer, detail="sketch", level=["module"]) as recorder:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = net(tokens)
            find_loss(logits.float(), labels).backward()
            optimizer.step()
            recorder.step()
        return read_dump(tmp_path / side)

    return trained


def find_loss_of_next_token(logits, labels, **options):
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), **options)


LOSSES = {  # fault -> loss of the target, and the rule that names it
    "shifted twice": (lambda logits, labels: find_loss_of_next_token(logits, labels.roll(-1, 1)), "PF418"),
    "not shifted": (
        lambda logits, labels: torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()),
        "PF418",
    ),
    "padding learned": (lambda logits, labels: find_loss_of_next_token(logits, labels.clamp(min=0)), "PF406"),
    "smoothed": (lambda logits, labels: find_loss_of_next_token(logits, labels, label_smoothing=0.3), "PF419"),
}


@pytest.mark.parametrize("fault", LOSSES)
def test_a_loss_that_differs_is_named_in_place_of_the_models_last_module(train_on_tokens, fault):
    find_loss, rule = LOSSES[fault]
    sides = train_on_tokens("reference", find_loss=find_loss_of_next_token), train_on_tokens("target", find_loss=find_loss)
    model = compare_dumps(*sides, command="")
    assert model.verdict.verdict == "misaligned"
    assert [finding.rule for finding in model.findings] == [rule]
    assert {one.name: one.state for one in model.phases}["forward"] == "aligned"


def test_a_loss_that_differs_is_named_where_no_gradient_shows_it(tmp_path):
    """In 16 bits the gradients that it leaves may be within their limits, and here they were not recorded."""

    def trained(side, smoothing):
        torch.manual_seed(2)
        model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 5))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        options = {"optimizer": optimizer, "level": ["module"], "phase": ["forward", "optimizer"]}
        with precflow.capture(model, tmp_path / side, **options) as recorder:
            torch.nn.functional.cross_entropy(model(torch.randn(4, 6)), torch.arange(4), label_smoothing=smoothing).backward()
            optimizer.step()
            recorder.step()
        return read_dump(tmp_path / side)

    model = compare_dumps(trained("reference", 0.0), trained("target", 0.3), command="")
    assert model.verdict.verdict == "misaligned"
    assert model.findings[0].rule == "PF419"
    assert "it differs in the first step" in model.findings[0].title
    assert model.region.start == "loss"


@pytest.mark.parametrize(("reference", "target"), [(True, False), (False, True)])
def test_backward_that_goes_further_on_one_side_is_named(tmp_path, reference, target):
    """The critic's step of a GAN: without ``detach`` its loss has gradients in the generator, which nobody uses."""

    def trained(side, detaches):
        torch.manual_seed(2)
        generator, critic = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)
        model = torch.nn.ModuleDict({"generator": generator, "critic": critic})
        optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
        with precflow.capture(model, tmp_path / side, optimizer=optimizer, level=["module"]) as recorder:
            made = generator(torch.randn(5, 3))
            critic(made.detach() if detaches else made).exp().mean().backward()
            optimizer.step()
            recorder.step()
        return read_dump(tmp_path / side)

    model = compare_dumps(trained("reference", reference), trained("target", target), command="")
    assert model.verdict.verdict == "inconclusive"
    assert [finding.rule for finding in model.findings] == ["PF424"]
    assert (
        model.findings[0].title == f"backward reaches critic (backward) on the {'target' if reference else 'reference'} alone"
    )


@pytest.mark.parametrize("detail", ["tensors", "sketch"])
def test_gradients_that_agree_follow_a_wrong_one_through_their_common_norm(tmp_path, detail):
    """A term of the loss at the middle of the model, as of an autoencoder, changes the norm that all are clipped by."""

    def trained(side, weight):
        torch.manual_seed(2)
        encoder, decoder = torch.nn.Linear(6, 4), torch.nn.Linear(4, 6)
        model, x = torch.nn.ModuleDict({"encoder": encoder, "decoder": decoder}), torch.randn(5, 6)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        folder = tmp_path / side
        with precflow.capture(model, folder, optimizer=optimizer, level=["module"], detail=detail) as recorder:
            code = encoder(x)
            (10 * (decoder(torch.tanh(code)) - x).square().mean() + weight * code.square().mean()).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            recorder.step()
        return read_dump(folder)

    model = compare_dumps(trained("reference", 1.0), trained("target", 3.0), command="")
    assert model.verdict.verdict == "misaligned"
    assert not {"PF211", "PF805"} & {finding.rule for finding in model.findings}
    assert {one.name: one.state for one in model.phases}["optimizer"] == "inherits"


@pytest.mark.parametrize("is_scored", [False, True])
def test_a_loss_that_differs_in_a_later_step_is_named_too(tmp_path, is_scored):
    """The second half of a GAN's iteration has a loss of its own, of scores with one axis."""

    class Critic(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = torch.nn.Linear(6, 8), torch.nn.Linear(8, 1 if is_scored else 3)

        def forward(self, x):
            y = self.head(torch.tanh(self.body(x)))
            return y.squeeze(1) if is_scored else y

    def trained(side, sign):
        torch.manual_seed(2)
        critic, x = Critic(), torch.randn(5, 6)
        optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
        with precflow.capture(critic, tmp_path / side, optimizer=optimizer, step=[0, 1], level=["module"]) as recorder:
            for factor in (1.0, sign):
                optimizer.zero_grad()
                (factor * torch.exp(critic(x))).mean().backward()
                optimizer.step()
                recorder.step()
        return read_dump(tmp_path / side)

    model = compare_dumps(trained("reference", 1.0), trained("target", -1.0), command="")
    assert model.verdict.verdict == "misaligned"
    assert [finding.rule for finding in model.findings] == ["PF419"]
    assert "step 1" in model.findings[0].title


def test_a_loss_that_differs_is_named_beside_another_model_whose_backward_comes_first(tmp_path):
    """A distilled student has an adapter beside it, which reads what its body returns."""

    def trained(side, smoothing):
        torch.manual_seed(2)
        body, head, adapter = torch.nn.Linear(6, 8), torch.nn.Linear(8, 5), torch.nn.Linear(8, 3)
        model = torch.nn.ModuleDict({"student": torch.nn.Sequential(body, head), "adapter": adapter})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        kept = []
        body.register_forward_hook(lambda module, given, made: kept.append(made))
        with precflow.capture(model, tmp_path / side, optimizer=optimizer, level=["module"]) as recorder:
            logits = model["student"](torch.randn(4, 6))
            loss = torch.nn.functional.cross_entropy(logits, torch.arange(4), label_smoothing=smoothing)
            (loss + adapter(kept[0]).square().mean()).backward()
            optimizer.step()
            recorder.step()
        return read_dump(tmp_path / side)

    model = compare_dumps(trained("reference", 0.0), trained("target", 0.3), command="")
    assert [finding.rule for finding in model.findings] == ["PF419"]


def test_the_same_loss_written_otherwise_is_no_finding(train_on_tokens):
    def by_hand(logits, labels):
        kept = labels[:, 1:] != -100
        return -torch.log_softmax(logits[:, :-1][kept], -1).gather(1, labels[:, 1:][kept][:, None]).mean()

    sides = train_on_tokens("reference", find_loss=find_loss_of_next_token), train_on_tokens("target", find_loss=by_hand)
    assert compare_dumps(*sides, command="").findings == ()


@pytest.fixture
def train_with_average(tmp_path):
    """Return a function that trains two steps and keeps a moving average of the weights."""

    def trained(side, *, form="dictionary", decay=0.9, start=1.0, keeps=True, before=False, detail="tensors"):
        torch.manual_seed(2)
        net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
        copies = {name: weight.detach() * start for name, weight in net.named_parameters()} if keeps else {}
        if form == "dictionary":
            average = copies
        elif form == "list":
            average = list(copies.values())
            copies = dict(zip(copies, average, strict=True))
        else:
            average = copy.deepcopy(net)
            copies = dict(average.named_parameters())

        @torch.no_grad()
        def update():
            for name, kept in copies.items():
                kept.mul_(decay).add_(net.get_parameter(name), alpha=1 - decay)

        folder = tmp_path / side
        with precflow.capture(net, folder, optimizer=optimizer, step=[0, 1], level=["module"], detail=detail) as recorder:
            for step in range(2):
                optimizer.zero_grad()
                net(torch.randn(4, 8, generator=torch.Generator().manual_seed(step))).square().mean().backward()
                if before:
                    update()
                optimizer.step()
                if not before:
                    update()
                recorder.step()
        return read_dump(folder)

    return trained


@pytest.mark.parametrize(
    ("form", "fault", "detail"),
    [
        ("dictionary", {"decay": 0.99}, "tensors"),
        ("dictionary", {"start": 0.5}, "sketch"),
        ("list", {"decay": 0.99}, "sketch"),
        ("module", {"before": True}, "tensors"),
    ],
)
def test_a_moving_average_that_differs_is_named_though_training_does_not_read_it(train_with_average, form, fault, detail):
    reference = train_with_average("reference", form=form, detail=detail)
    sides = reference, train_with_average("target", form=form, detail=detail, **fault)
    model = compare_dumps(*sides, command="")
    assert model.verdict.verdict == "misaligned"
    assert [(finding.rule, finding.where) for finding in model.findings] == [("PF816", "average")]
    assert find_guilty(model.phases) == "optimizer"


def test_an_average_of_both_sides_or_of_one_alone_is_no_finding(train_with_average):
    reference = train_with_average("reference")
    for side, keeps in (("target", True), ("other", False)):
        model = compare_dumps(reference, train_with_average(side, keeps=keeps), command="")
        assert (model.verdict.verdict, model.findings) == ("aligned", ())


@pytest.fixture
def resume(tmp_path):
    """Return a function that trains two steps after one that was saved; both sides have the weights of the checkpoint."""

    def resumed(side, *, loads_state=True, leaves_average=False, detail="sketch", lr=1e-2):
        torch.manual_seed(2)
        net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
        optimizer = torch.optim.AdamW(net.parameters(), lr=lr)

        def step(number):
            optimizer.zero_grad()
            net(torch.randn(4, 8, generator=torch.Generator().manual_seed(number))).square().mean().backward()
            optimizer.step()

        for number in range(3):
            step(number)
        if not loads_state:
            optimizer = torch.optim.AdamW(net.parameters(), lr=lr)
        begin = [weight.detach().clone() for weight in net.parameters()]
        with precflow.capture(
            net, tmp_path / side, optimizer=optimizer, step=[0, 1], level=["module"], detail=detail
        ) as recorder:
            for number in range(2):
                step(3 + number)
                if leaves_average:
                    with torch.no_grad():
                        for weight, kept in zip(net.parameters(), begin, strict=True):
                            weight.copy_((weight + kept) / 2)
                recorder.step()
        return read_dump(tmp_path / side)

    return resumed


@pytest.mark.parametrize("detail", ["sketch", "tensors"])
def test_an_optimizer_that_begins_anew_after_a_checkpoint_is_named(resume, detail):
    model = compare_dumps(resume("reference", detail=detail), resume("target", detail=detail, loads_state=False), command="")
    first = model.findings[0]
    assert (first.rule, first.certainty) == ("PF818", "certain")
    assert first.title == "the target begins the optimizer's state anew: it counts 4 / 1 steps (reference / target)"
    assert find_guilty(model.phases) == "optimizer"


def test_weights_that_are_written_after_a_step_are_no_fault_of_the_forward_that_reads_them(resume):
    model = compare_dumps(resume("reference"), resume("target", leaves_average=True), command="")
    first = model.findings[0]
    assert (first.rule, first.certainty) == ("PF821", "certain")
    assert first.where == "after step 0"
    assert "PF299" not in {finding.rule for finding in model.findings}


def test_another_rate_or_the_same_run_is_nothing_that_writes_weights(resume):
    reference = resume("reference")
    for side, rate in (("target", 1e-2), ("other", 2e-2)):
        rules = {finding.rule for finding in compare_dumps(reference, resume(side, lr=rate), command="").findings}
        assert not {"PF818", "PF821"} & rules


class Adapter(torch.nn.Module):
    """Adds a product of two small matrices to what a frozen layer computes, as teams write it."""

    def __init__(self, alpha):
        super().__init__()
        self.base = torch.nn.Linear(8, 8).requires_grad_(False)  # noqa: FBT003  torch's own spelling
        self.a, self.b = (torch.nn.Parameter(torch.randn(shape) / 4) for shape in ((2, 8), (8, 2)))
        self.scale = alpha / 2

    def forward(self, x):
        return self.base(x) + self.scale * torch.nn.functional.linear(torch.nn.functional.linear(x, self.a), self.b)


def test_the_scale_of_an_adapter_is_named_by_the_module_that_keeps_it(tmp_path):
    for side, alpha in (("reference", 4.0), ("target", 1.0)):
        torch.manual_seed(2)
        net = torch.nn.Sequential(torch.nn.Linear(8, 8), Adapter(alpha), torch.nn.Tanh())
        with precflow.capture(net, tmp_path / side, level=["module"], phase=["forward"], detail="sketch"):
            net(torch.randn(4, 8))
    model = compare_dumps(read_dump(tmp_path / "reference"), read_dump(tmp_path / "target"), command="")
    first = model.findings[0]
    assert (first.rule, first.certainty) == ("PF237", "likely")
    assert first.title == "1 is set otherwise: self.scale: 2.0 / 0.5"


def test_what_happens_to_gradients_between_micro_batches_is_named(tmp_path):
    def train(side, between, **kept):
        torch.manual_seed(2)
        net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
        with precflow.capture(net, tmp_path / side, optimizer=optimizer, step=[0, 1], level=["module"], **kept) as recorder:
            for step in range(2):
                for micro in range(3):
                    net(torch.randn(4, 8, generator=torch.Generator().manual_seed(3 * step + micro))).square().mean().backward()
                    between(net, optimizer)
                optimizer.step()
                optimizer.zero_grad()
                recorder.step()
        return read_dump(tmp_path / side)

    def clear(net, optimizer):
        if net[0].weight.grad.norm() < 10:  # always: the last micro batch's are cleared too, and nothing is updated
            optimizer.zero_grad(set_to_none=False)

    def clip(net, optimizer):
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)

    def scale(net, optimizer):
        for parameter in net.parameters():
            parameter.grad *= torch.rand(parameter.shape, generator=torch.Generator().manual_seed(1))

    reference = train("reference", lambda *_: None, detail="sketch")
    for side, between, named in (("clears", clear, "clears its gradients"), ("clips", clip, "multiplies its gradients by")):
        model = compare_dumps(reference, train(side, between, detail="sketch"), command="")
        assert model.verdict.verdict == "misaligned"
        assert model.findings[0].rule == "PF830"
        assert model.findings[0].title.startswith(f"The target {named}")
    other = compare_dumps(reference, train("scales", scale, detail="sketch"), command="")
    assert "PF830" not in {finding.rule for finding in other.findings}
