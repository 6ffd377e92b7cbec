"""What of a recipe can be smaller, and that the words for a size compose to it."""

import pytest

from precflow.config.composition import compose
from precflow.config.sections.reduce_section import look_up
from precflow.errors import ConfigError
from precflow.run.knobs import find_knobs, write_words

pytestmark = pytest.mark.usefixtures("clean")
MODEL = "workload.model._target_=my.build"


def compose_words(*words):
    return compose(words, complete=False).config


def test_what_the_main_recipe_has():
    words = ("+recipe=sd_text_encoder",)
    config = compose_words(*words)
    knobs = {knob.name: knob for knob in find_knobs(config)}
    assert {name: knob.describe(knob.now) for name, knob in knobs.items()} == {
        "layers": "12",
        "token_ids": "3",
        "length of token_ids": "33",
    }
    setting = {"layers": 2, "token_ids": (1,), "length of token_ids": 4}
    smaller = compose_words(*words, *write_words(config, list(knobs.values()), setting))
    assert smaller.workload.model["layers"] == 2
    assert smaller.workload.inputs["token_ids"] == [[49406, 19759, 222, 34517]]
    assert write_words(config, list(knobs.values()), {name: knob.now for name, knob in knobs.items()}) == []


def test_numbers_are_known_by_their_names_at_any_depth_and_a_width_is_one_of_the_heads(monkeypatch):
    monkeypatch.setenv("PRECFLOW_TRUST", "my,minilm_workload")
    settings = "{num_hidden_layers: 4, hidden_size: 96, num_attention_heads: 6, rope_theta: 10000, vocab_size: 512}"
    config = compose_words(
        "+recipe=minilm", MODEL, f"workload.model.config={settings}", "workload.inputs.texts=['a,b','层 \"x\"','']"
    )
    knobs = {knob.name: knob for knob in find_knobs(config)}
    assert list(knobs) == [
        "texts", "length of texts", "num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size",
    ]  # fmt: skip
    assert knobs["hidden_size"].least == 12
    setting = {name: knob.least for name, knob in knobs.items()} | {"texts": (1,), "length of texts": 4}
    words = write_words(config, list(knobs.values()), setting)
    smaller = compose_words("+recipe=minilm", MODEL, *words)
    assert smaller.workload.inputs["texts"] == ['层 "x']
    assert smaller.workload.model["config"] == {
        "num_hidden_layers": 1, "hidden_size": 12, "num_attention_heads": 1, "vocab_size": 1,
    }  # fmt: skip


def test_of_a_script_it_is_arguments_steps_and_its_rest():
    config = compose_words(
        "+recipe=script", "workload.script=train.py", "workload.arguments.batch-size=8", "workload.arguments.lr=1e-3",
        "reduce.depth.at=workload.arguments.depth", "reduce.depth.value=6", "reduce.depth.smallest=2",
    )  # fmt: skip
    knobs = {knob.name: knob for knob in find_knobs(config)}
    assert list(knobs) == ["depth", "recorded steps", "the script runs", "batch-size"]
    words = write_words(config, list(knobs.values()), {name: knob.least for name, knob in knobs.items()})
    assert words == [
        "workload.arguments.depth=2", "capture.step=[0]", "workload.stop_early=true", "workload.arguments.batch-size=1",
    ]  # fmt: skip
    smaller = compose_words("+recipe=script", "workload.script=train.py", *words)
    assert (smaller.capture.step, smaller.workload.stop_early) == ((0,), True)
    assert look_up(smaller, "workload.arguments.depth") == "2"
    late = find_knobs(compose_words("+recipe=script", "workload.script=train.py", "capture.step=[7]"))
    assert [(knob.name, knob.now, knob.least) for knob in late[:1]] == [("recorded step", 7, 0)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["reduce.a.at=target.dtype"], "expected a key below workload.model"),
        (["reduce.a.smallest=1"], "expected a key below workload.model"),
        (["reduce.a.at=workload.model._target_"], "expected a key below workload.model"),
        (["reduce.a.at=workload.model.weights"], "is 'seeded', and a knob is a whole number"),
        (["reduce.a.at=workload.model.depth"], "is needed: the recipe does not set workload.model.depth"),
        (["reduce.a.at=workload.model.depth", "reduce.a.value=4", "reduce.a.smallest=5"], "has nothing to try"),
        (["reduce.a.at=workload.model.depth", "reduce.a.value=4", "reduce.a.multiple_of=0"], "has nothing to try"),
    ],
)
def test_a_knob_that_turns_nothing_is_refused(words, said):
    with pytest.raises(ConfigError) as refused:
        compose_words("+recipe=sd_text_encoder", *words)
    assert said in str([problem.message for problem in refused.value.problems])
