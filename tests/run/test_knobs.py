"""What of a recipe can be smaller, and that the words for a size compose to it."""

import json
from pathlib import Path

import pytest

from precflow.config.composition import compose
from precflow.config.sections.reduce_section import look_up
from precflow.errors import ConfigError
from precflow.run.knobs import find_knobs, write_words
from precflow.run.smaller_runs import Smaller

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


def test_a_configuration_that_the_recipe_names_is_copied_smaller(monkeypatch, tmp_path):
    monkeypatch.setenv("PRECFLOW_TRUST", "my,minilm_workload")
    sizes = {"num_hidden_layers": 6, "hidden_size": 64, "num_attention_heads": 4, "name": "层", "text_config": {"n_layer": 3}}
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(sizes), encoding="utf-8")
    (folder / "vocab.txt").write_text("a", encoding="utf-8")
    deep = "reduce.inner.at=workload.model.config.text_config.n_layer"
    for given in (folder, folder / "config.json"):
        words = ("+recipe=minilm", MODEL, f"workload.model.config={given}", deep)
        config = compose_words(*words)
        knobs = find_knobs(config)
        sizes_now = {knob.name: knob.now for knob in knobs if knob.kind == "number"}
        assert sizes_now == {"inner": 3, "num_hidden_layers": 6, "hidden_size": 64, "num_attention_heads": 4}
        setting = {knob.name: knob.now for knob in knobs} | {"inner": 1, "num_hidden_layers": 2, "hidden_size": 8}
        made = write_words(config, knobs, setting, tmp_path / "made")
        smaller = compose_words(*words[:2], *made)
        assert [knob.now for knob in find_knobs(smaller) if knob.name == "num_hidden_layers"] == [2]
        path = Path(smaller.workload.model["config"])
        written = json.loads((path / "config.json" if path.is_dir() else path).read_text(encoding="utf-8"))
        assert written == sizes | {"num_hidden_layers": 2, "hidden_size": 8, "text_config": {"n_layer": 1}}
        assert path.is_dir() == given.is_dir()
        assert not path.is_dir() or (path / "vocab.txt").is_file()
    (folder / "model.safetensors").write_bytes(b"")  # weights have one size
    assert not [
        knob
        for knob in find_knobs(compose_words("+recipe=minilm", MODEL, f"workload.model.config={folder}"))
        if knob.kind == "number"
    ]


def test_configurations_that_no_recipe_names_are_removed(tmp_path):
    smaller = Smaller((), (), None, (), None, tmp_path, print)
    smaller.remove_configurations("")  # none was made
    folder = tmp_path / "configurations"
    (folder / "model-1").mkdir(parents=True)
    for name in ("config-1.json", "config-2.json", "model-1/config.json"):
        (folder / name).write_text("{}", encoding="utf-8")
    smaller.remove_configurations(f"config: {folder / 'config-2.json'}")
    assert [path.name for path in folder.iterdir()] == ["config-2.json"]


@pytest.mark.parametrize("text", ["[1]", "{", '{"num_hidden_layers": "x"}', "{}"])
def test_a_file_that_is_no_configuration_has_no_knobs(monkeypatch, tmp_path, text):
    monkeypatch.setenv("PRECFLOW_TRUST", "my,minilm_workload")
    (tmp_path / "a.json").write_text(text, encoding="utf-8")
    config = compose_words("+recipe=minilm", MODEL, f"workload.model.config={tmp_path / 'a.json'}")
    assert [knob.name for knob in find_knobs(config)] == ["texts", "length of texts"]


def test_dimensions_of_shapes_are_knobs_and_a_picture_stays_square(monkeypatch):
    monkeypatch.setenv("PRECFLOW_TRUST", "my,minilm_workload")
    shapes = ("+workload.inputs.shape=[2,3,224,224]", "+workload.inputs.sizes={batch: 4, sequence: 64}")
    declared = ("reduce.channels.at=workload.inputs.shape.1", "reduce.channels.smallest=3")
    config = compose_words("+recipe=minilm", MODEL, *shapes, *declared)
    knobs = {knob.name: knob for knob in find_knobs(config)}
    assert {name: (knob.now, knob.least) for name, knob in knobs.items() if knob.kind == "number"} == {
        "shape 0": (2, 1), "shape 2 and 3": (224, 8), "sizes batch": (4, 1), "sizes sequence": (64, 8),
    }  # fmt: skip
    setting = {name: knob.least for name, knob in knobs.items()}
    words = write_words(config, list(knobs.values()), setting)
    assert {"workload.inputs.shape=[1,3,8,8]", "workload.inputs.sizes.batch=1", "workload.inputs.sizes.sequence=8"} <= set(
        words
    )
    config = compose_words("+recipe=minilm", MODEL, "+workload.model.image_size=224", "+workload.model.patch_size=16")
    assert [(knob.name, knob.least) for knob in find_knobs(config) if knob.kind == "number"] == [("image_size", 16)]
    sizes = ("+workload.model.image_size=224", "+workload.model.patch_size=16", "+workload.inputs.shape=[2,224,224]")
    config = compose_words("+recipe=minilm", MODEL, *sizes)
    numbers = [knob for knob in find_knobs(config) if knob.kind == "number"]
    assert [(knob.name, knob.least) for knob in numbers] == [("shape 0", 1), ("image_size and shape 1 and 2", 16)]
    setting = {knob.name: knob.least for knob in find_knobs(config)}
    words = write_words(config, find_knobs(config), setting)
    assert {"workload.model.image_size=16", "workload.inputs.shape=[1,16,16]"} <= set(words)
