"""The same two dumps by every door: the verb, the function and the recipe say the same, down to each record and finding."""

import json
from pathlib import Path

import dump_builder as builder
import numpy as np
import pytest
import torch

import precflow
from precflow import cli
from precflow.agent.contract import CHECKSUM, checksum_of
from precflow.config.composition import compose
from precflow.config.schema import RunConfig
from precflow.dumps.formats import read_dump
from precflow.errors import SideError
from precflow.run.runner import run
from precflow.stages import evaluation, introduced
from precflow.stages.two_dumps import make_job

# What a run has and two dumps without a recipe do not: its name, its stages, and which metrics its tables show first.
_OF_A_RUN = {"recipe", "title", "run", "finished", "seconds", "command", "stages", "recipe_yaml", "columns", "rows"}


class Block(torch.nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.norm = torch.nn.LayerNorm(16, eps=eps)
        self.fc = torch.nn.Linear(16, 16)

    def forward(self, x):
        return x + torch.nn.functional.gelu(self.fc(self.norm(x)))


@pytest.fixture(autouse=True)
def _clean(clean):
    """Take the machine's own settings away."""


@pytest.fixture
def record(tmp_path):
    """Return a function that records one side."""

    def write(side, *, detail="tensors", dtype=torch.float32, eps=1e-5, lr=None, seed=0):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(Block(1e-5), Block(eps), torch.nn.Linear(16, 4)).to(dtype)
        inputs = (torch.linspace(-0.1, 0.1, 8 * 16).sin() * 0.1).reshape(8, 16).to(dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=lr) if lr else None
        with precflow.capture(model, tmp_path / side, optimizer=optimizer, detail=detail):
            loss = model(inputs).square().mean()
            if optimizer:
                loss.backward()
                optimizer.step()
        return tmp_path / side

    return write


def give_the_same_start(reference, target):
    """Let a dump say that it began with the weights and inputs of another, as a workload that is cast to its type does."""
    headers = [json.loads((folder / "dump.json").read_text()) for folder in (reference, target)]
    headers[1].update({name: headers[0][name] for name in ("weights", "inputs")})
    headers[1][CHECKSUM] = checksum_of(headers[1])
    (target / "dump.json").write_text(json.dumps(headers[1]))


def through_the_verb(folder, *words):
    code = cli.main(["compare", *map(str, folder), *words])
    return code, json.loads(Path("comparison/result.json").read_text(encoding="utf-8"))


def through_the_recipe(folder, *words):
    given = [f"{side}.dump={path}" for side, path in zip(("reference", "target"), folder, strict=True)]
    outcome = run(compose(["+recipe=compare_dumps", *given, *words]), command="")
    return outcome.exit_code, json.loads((outcome.folder / "public" / "result.json").read_text())


def facts(result):
    """Return what a result says of the pair: all of it, and of each row what does not depend on the columns of a table."""
    rows = [{key: value for key, value in row.items() if key != "metrics"} for row in result["rows"]]
    verdict = {**result["verdict"], "reasons": without_switch(result["verdict"]["reasons"])}
    return {**{key: value for key, value in result.items() if key not in _OF_A_RUN}, "verdict": verdict}, rows


def without_switch(reasons):
    """Leave out how to compare nevertheless: each door has a switch of its own for it."""
    return [text for text in reasons if not text.endswith("compares them nevertheless, if they differ on purpose")]


PAIRS = {
    "statistics, another type, a fault": ({"detail": "statistics", "dtype": torch.bfloat16, "eps": 1e-2}, "misaligned"),
    "sketch, another type, a fault": ({"detail": "sketch", "dtype": torch.bfloat16, "eps": 1e-2}, "misaligned"),
    "tensors, another type, a fault": ({"dtype": torch.bfloat16, "eps": 1e-2}, "misaligned"),
    "tensors, another type": ({"dtype": torch.float16}, "aligned"),
    "tensors": ({}, "aligned"),
    "statistics, a fault": ({"detail": "statistics", "eps": 1e-2}, "misaligned"),
    "training": ({"lr": 0.1}, "aligned"),
    "training, another rate": ({"lr": 0.2}, "misaligned"),
    "other weights": ({"seed": 1}, "inconclusive"),
}


@pytest.mark.parametrize("name", PAIRS)
def test_every_door_says_the_same(record, name):
    target, verdict = PAIRS[name]
    reference = {"detail": target.get("detail", "tensors"), "lr": 0.1 if "lr" in target else None}
    folders = record("reference", **reference), record("target", **target)
    if "dtype" in target:
        give_the_same_start(*folders)
    assert_same_by_every_door(folders, verdict, calls_the_function="statistics" in name or verdict == "inconclusive")


@pytest.mark.parametrize(("ranks", "factor", "verdict"), [(2, 1.0, "aligned"), (2, 1.5, "misaligned"), (1, 1.0, "aligned")])
def test_every_door_says_the_same_of_ranks(tmp_path, ranks, factor, verdict):
    """Two ranks beside two, and beside a single process that has the whole batch."""
    batch = np.random.default_rng(3).standard_normal((4, 8)).astype(np.float32)
    folders = []
    for side, count in (("reference", ranks), ("target", 2)):
        made = builder.DumpBuilder(tmp_path / side, side=side)
        for rank, part in enumerate(np.split(batch, count)):
            scale = np.float32(factor if side == "target" and rank else 1)
            made.call("fc", "linear", [part * scale], [part], rank=rank).call("", "", [part * scale], [part], rank=rank)
        folders.append(made.write())
    assert_same_by_every_door(folders, verdict)


def assert_same_by_every_door(folders, verdict, *, calls_the_function=False):
    """Compare two dumps by the verb and the recipe, and where that is asked for by the function, which the verb calls."""
    code, by_verb = through_the_verb(folders)
    other_code, by_recipe = through_the_recipe(folders)
    assert (by_verb["verdict"]["verdict"], code) == (verdict, other_code)
    assert facts(by_verb) == facts(by_recipe)
    if not calls_the_function:
        return
    by_function = precflow.compare(*folders)
    assert by_function.verdict == verdict
    assert without_switch(by_function.reasons) == without_switch(by_verb["verdict"]["reasons"])
    assert by_function.start == by_verb["region"]["start"]
    assert [(one.rule, one.certainty) for one in by_function.findings] == [
        (one["rule"], one["certainty"]) for one in by_verb["findings"]
    ]
    assert [(one.name, one.status) for one in by_function.records] == [
        (row["record"], row["status"]) for row in by_verb["rows"]
    ]


def test_without_an_evaluation_the_verdict_says_so(record, monkeypatch):
    """Left out, no tensors, no torch: three reasons, each in the words of every door."""
    folders = record("reference"), record("target", eps=1e-2)

    def warned(*results):
        warnings = [result[1]["verdict"]["warnings"] for result in results]
        assert warnings[0] == warnings[1]
        return [text for text in warnings[0] if "float64" in text]

    words = "stages=[dump,determinism,compare,judge,localize,advise,report]"
    left_out = warned(through_the_verb(folders, "--no-evaluation"), through_the_recipe(folders, words))
    assert left_out == [introduced.LEFT_OUT]
    assert introduced.LEFT_OUT in " ".join(precflow.compare(*folders, evaluate=False).summary.split())

    def fail(*_args, **_options):
        raise SideError("reference: torch cannot be imported", kind="workload")

    monkeypatch.setattr(evaluation, "run_agent", fail)
    said = "no call was evaluated in float64: reference: torch cannot be imported"
    assert warned(through_the_verb(folders), through_the_recipe(folders)) == [said]
    few = record("reference-statistics", detail="statistics"), record("target-statistics", detail="statistics", eps=1e-2)
    assert warned(through_the_verb(few), through_the_recipe(few)) == [evaluation.NOTHING_KEPT]


def test_a_tensor_has_the_status_that_it_has_in_a_dump(record):
    folders = record("reference"), record("target", eps=1e-2)
    dumps = [read_dump(folder) for folder in folders]
    rows = {row.name: row for row in precflow.compare(*folders, evaluate=False).records}
    for calls in zip(*(dump.calls() for dump in dumps), strict=True):
        one, other = (call.outputs[0] for call in calls)
        row = rows[one.text]
        if one.stored and row.status in {"pass", "fail"}:
            (value,) = precflow.compare(dumps[0].tensor(one), dumps[1].tensor(other)).records
            assert (value.status, value.metric, value.ratio) == (row.status, row.metric, row.ratio)


def test_two_dumps_without_a_recipe_have_that_of_compare_dumps():
    """The doors share their stages; this holds what the stages are told."""

    class Here:
        path = "here"

    composed = compose(["+recipe=compare_dumps", "reference.dump=here", "target.dump=here2"], complete=False).config
    ours = make_job(Here(), Here()).config
    settings = (
        "workload",
        "determinism",
        "tolerance",
        "accepted",
        "coverage",
        "pairing",
        "curves",
        "whatif",
        "stages",
        "metrics",
    )
    for name in (*settings, "environment", "recipe", "sides"):
        assert getattr(ours, name) == getattr(composed, name), name
    assert RunConfig().tolerance == composed.tolerance
