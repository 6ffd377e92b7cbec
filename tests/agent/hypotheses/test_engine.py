"""The engine tries what it finds in a folder: it knows no hypothesis by name, and none keeps it from trying the others."""

import pytest
import torch
from subjects import subject_of
from torch.nn import functional

from precflow.agent.hypotheses import engine, of_call
from precflow.agent.hypotheses.engine import list_hypotheses, try_all
from precflow.agent.hypotheses.subject import Candidate, Hypothesis
from precflow.agent.replay.calls import CannotCompute, RecordedCall, SideTensors, StoredTensor, TensorFiles
from precflow.agent.replay.computation import float64_defaults

X = torch.randn(8, 32, generator=torch.Generator().manual_seed(5))
NEW = '''
"""A relu that does not bend."""
from precflow.agent.hypotheses.subject import Candidate, Hypothesis

def propose(subject):
    if subject.name == "relu":
        yield Candidate("not_bent", subject.give(subject.tensor(0, "input")))

HYPOTHESIS = Hypothesis("variant", propose)
'''


@pytest.fixture
def relu():
    with float64_defaults(), torch.no_grad():
        yield subject_of("relu", {}, [X], X.relu(), X.clone())


@pytest.fixture
def fresh():
    list_hypotheses.cache_clear()
    yield
    list_hypotheses.cache_clear()


@pytest.mark.usefixtures("fresh")
def test_a_hypothesis_is_one_file_that_is_found(relu, tmp_path, monkeypatch):
    names = {name for name, _ in list_hypotheses(of_call)}
    assert {"other_value", "fitted_number"} <= names
    assert try_all(relu, list_hypotheses(of_call)).found == []
    (tmp_path / "not_bent.py").write_text(NEW)
    monkeypatch.setattr(of_call, "__path__", [*of_call.__path__, str(tmp_path)])
    list_hypotheses.cache_clear()
    assert {name for name, _ in list_hypotheses(of_call)} == {*names, "not_bent"}
    (found,) = try_all(relu, list_hypotheses(of_call)).found
    assert (found["tells"], found["name"], found["share"]) == ("variant", "not_bent", 1.0)


def propose_all(*candidates):
    return (("any", Hypothesis("variant", lambda subject: (each(subject) for each in candidates))),)


def refuse(_):
    raise CannotCompute("never")


def test_what_cannot_be_computed_says_nothing_of_what_comes_after_it(relu):
    def break_off():
        raise RuntimeError("torch refuses this")

    hypotheses = propose_all(lambda _: Candidate("broken", break_off), lambda one: Candidate("same", one.give(X.double())))
    broken = (("stops", Hypothesis("argument", refuse)),)
    tried = try_all(relu, broken + hypotheses)
    assert [line["name"] for line in tried.found] == ["same"]
    assert tried.tried == ["variant"]


def test_the_best_comes_first_and_what_explains_less_than_half_is_left_out(relu):
    def mixed(share):
        return lambda one: Candidate(str(share), one.give(share**0.5 * X.double() + (1 - share**0.5) * X.double().relu()))

    tried = try_all(relu, propose_all(mixed(0.05), mixed(0.5), mixed(1.0), mixed(0.7)))
    assert [line["name"] for line in tried.found] == ["1.0", "0.7", "0.5"]


def test_one_limit_holds_for_the_work_of_each_hypothesis(relu, monkeypatch):
    every = propose_all(*[lambda one: Candidate("same", one.give(X.double()))] * 5)
    assert relu.work == 2 * X.numel()
    monkeypatch.setattr(engine, "MOST_WORK", 3 * relu.work)
    tried = try_all(relu, every)
    assert (len(tried.found), tried.left_out) == (3, ["any"])
    costly = (("costly", every[0][1]._replace(runs=4)),)
    tried = try_all(relu, costly)
    assert (tried.found, tried.tried, tried.left_out) == ([], [], ["costly"])


def test_a_number_is_not_fitted_where_a_value_that_is_known_explains_everything():
    right, wrong = functional.elu(X, 0.5), functional.elu(X)
    with float64_defaults(), torch.no_grad():
        subject = subject_of("elu", {"alpha": "0.5"}, [X], right, wrong)
        found = try_all(subject, list_hypotheses(of_call)).found
    assert [(line["argument"], line["value"], line["is_fitted"]) for line in found if line["share"] > 0.9] == [
        ("alpha", "1.0", False)
    ]


def test_a_call_that_is_too_large_says_that_nothing_was_tried(monkeypatch):
    stored = tuple(StoredTensor(path, "float32", (8, 32), None, 0, 0) for path in "01")
    sides = dict.fromkeys(("reference", "target"), SideTensors(stored[:1], stored[1:]))
    call = RecordedCall("a/relu.0", "api", "relu", "", "forward", {}, sides)
    monkeypatch.setattr(engine, "MOST_ELEMENTS", 2 * 8 * 32 - 1)
    line = engine.explain(call, TensorFiles())
    assert line["left_out"] == [name for name, _ in list_hypotheses(of_call)]
    assert (line["results"], line["tried"], line["found"]) == (["a/relu.0"], [], [])
    monkeypatch.setattr(engine, "MOST_ELEMENTS", 2 * 8 * 32)
    with pytest.raises(CannotCompute, match="was not kept"):
        engine.explain(call, TensorFiles())


def test_nothing_is_concluded_from_a_reference_that_computed_something_else():
    with float64_defaults(), torch.no_grad(), pytest.raises(CannotCompute, match="something else than the reference"):
        subject_of("relu", {}, [X], X.relu() * 1.02, X.clone())
