import dataclasses
import json
import shlex
from pathlib import Path

import pytest
import yaml

from precflow.config import overrides, schema, trust
from precflow.config.build import Builder
from precflow.config.documents import Mark, read
from precflow.config.vocabulary import allowed_words
from precflow.errors import ConfigError
from precflow.verbs import explain

PAGE = Path(__file__).parents[2] / "docs" / "keys.md"
KEYS = [one for one in explain.list_all() if one.takes]
SECTIONS = [kind for kind in vars(schema).values() if dataclasses.is_dataclass(kind)]


def test_every_key_says_what_it_means_and_has_an_example():
    untold = [
        f"{section.__name__}.{field.name}"
        for section in SECTIONS
        for field in dataclasses.fields(section)
        if not dataclasses.is_dataclass(field.default_factory)
        and not (field.metadata.get("meaning", "").endswith(".") and field.metadata["example"])
    ]
    assert untold == []
    assert [section for section in SECTIONS if not section.__doc__] == []


def test_the_page_of_all_keys_is_of_today():
    assert PAGE.read_text(encoding="utf-8") == explain.format_page() + "\n", "precflow explain --markdown > docs/keys.md"


def test_an_example_is_a_recipe_and_a_command_line(tmp_path):
    recipe = tmp_path / "example.yaml"
    for one in KEYS:
        recipe.write_text(one.in_recipe, encoding="utf-8")
        document = read(recipe, "recipe", "example")
        builder = Builder(lambda _: Mark("here"), allowed_words)
        builder.build(document.data)
        assert [*document.problems, *builder.problems] == [], one.key
        assert bool(list(trust.find_forbidden_text(document))) == ("recipe" not in one.set_by), one.key
        words, problems = overrides.read(shlex.split(one.on_command_line)[-1:])
        assert problems == [], one.key
        meant = yaml.safe_load(one.example)
        assert all(meant in (word.value, word.raw) for word in words), one.key


def test_one_key(capsys):
    assert explain.main(["capture.budget"]) == 0
    shown = capsys.readouterr().out
    for text in (
        "size with its unit such as 2GB",
        "default   0",
        "recipe, site, command line",
        "budget: 20GB",
        "capture.budget=20GB",
    ):
        assert text in shown
    assert explain.main(["target.interpreter"]) == 0
    assert "set by    site, command line" in capsys.readouterr().out


def test_sections_and_their_keys(capsys):
    assert explain.main([]) == 0
    shown = capsys.readouterr().out
    assert [name for name in ("workload", "tolerance", "site") if f" {name} " not in shown] == []
    assert explain.main(["tolerance"]) == 0
    shown = capsys.readouterr().out
    assert shown.index("tolerance.standards") < shown.index("tolerance.relative_l2")


@pytest.mark.parametrize(
    ("typed", "key"),
    [
        ("tolerance.rules[0].match", "tolerance.rules[].match"),
        ("tolerance.rules.3.match", "tolerance.rules[].match"),
        ("tolerance.rules[].match", "tolerance.rules[].match"),
        ("tolerance.rules", "tolerance.rules"),
        ("capture.rules.0.class", "capture.rules[].class"),
        ("target.variables.HCCL_DETERMINISTIC", "target.variables"),
        ("workload.model.weights", "workload.model"),
        ("+capture.detail", "capture.detail"),
    ],
)
def test_a_key_as_it_is_met_elsewhere(typed, key):
    assert explain.explain(typed).key == key


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("tolerance.cosin_similarity", "Did you mean  tolerance.cosine_similarity ?"),
        ("tolrance", "Did you mean  tolerance ?"),
        ("dtype", "Did you mean  reference.dtype, reference.mixed_precision.dtype, target.dtype"),
        ("seed", "Did you mean  determinism.seed ?"),
        ("tolerance.rules[].mach", "Did you mean  tolerance.rules[0].match ?"),
        ("target.dtype.x", "is one value"),
        ("...", "no such key"),
        ("time_limit", "no such key. precflow 0.1.0 does not have it yet"),
    ],
)
def test_what_is_no_key_is_refused_with_what_may_be_meant(typed, said):
    with pytest.raises(ConfigError) as error:
        explain.main([typed])
    assert said in str(error.value)


def test_as_json(capsys):
    assert explain.main(["capture.rules", "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["keys"]
    assert (one["key"], one["default"], one["keys"][0]["key"]) == ("capture.rules", "[]", "capture.rules[].match")
    assert explain.main(["--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["keys"]) > 20
