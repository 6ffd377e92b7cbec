import textwrap
from pathlib import Path

import pytest

from precflow import keys
from precflow.agent import contract
from precflow.agent.variables import SETTABLE
from precflow.config import composition, documents, interpolation, search_path, trust, units
from precflow.config.documents import read
from precflow.errors import ConfigError

FACTORY = "precflow.workloads.stable_diffusion.prompts"


def document(tmp_path, text, group="recipe"):
    file = tmp_path / "d.yaml"
    file.write_text(textwrap.dedent(text), encoding="utf-8")
    return read(file, group, "d")


@pytest.mark.parametrize(
    ("target", "packages", "yes"),
    [
        (FACTORY, [], True),
        ("precflow.workloads.extras.require", [], False),
        ("precflow.workloads.stable_diffusion.require", [], False),
        ("precflow.cli.main", [], False),
        ("precflow.workloads_evil.x", [], False),
        ("os.system", [], False),
        ("our_llm.models.build", ["our_llm"], True),
        ("our_llm.models.build", ["our_llm.models"], True),
        ("our_llm.other.build", ["our_llm.models"], False),
        ("our_llm2.build", ["our_llm"], False),
        ("torch.load", [], False),
    ],
)
def test_a_name_is_trusted_by_its_package(target, packages, yes):
    assert (list(trust.find_untrusted_targets({"workload": {"model": {"_target_": target}}}, packages)) == []) is yes


@pytest.mark.parametrize(
    "value", ["os.system", "${site.name}", "", "a b.c", "precflow.workloads.", 3, None, {"a": "b"}, ["os.system"]]
)
def test_targets_are_found_however_deep_and_however_written(value):
    found = list(trust.find_untrusted_targets({"workload": {"model": {"parts": [{"_target_": value}]}}}, ["mine"]))
    assert found
    assert found[0][0][:4] == ("workload", "model", "parts", "0")


def test_what_is_trusted_is_not_mentioned():
    assert (
        list(
            trust.find_untrusted_targets({"a": {"_target_": "mine.x"}, "workload": {"model": {"_target_": FACTORY}}}, ["mine"])
        )
        == []
    )


def test_trust_comes_from_variable_and_user(monkeypatch):
    monkeypatch.setenv("PRECFLOW_TRUST", "a, b:c")
    folder = search_path.user_folder()
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("trusted: [d]\n")
    assert set(trust.list_trusted_packages()) == {"a", "b", "c", "d"}


def test_a_broken_user_configuration_is_named():
    folder = search_path.user_folder()
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("trusted: [d\n")
    with pytest.raises(ConfigError, match="your own configuration"):
        trust.list_trusted_packages()


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("hydra: {callbacks: {x: {_target_: os.system}}}", "hydra"),
        ("# @package hydra.callbacks\nx: 1", "@package"),
        ("defaults: [override hydra/launcher: x]", "defaults"),
        ("defaults: ['capture@hydra.callbacks: x']", "defaults"),
        ("defaults: [{'/capture@hydra.callbacks': x}]", "defaults"),
        ("defaults: [/site/evil]", "defaults"),
        ("defaults: [{/site: evil}]", "defaults"),
        ("defaults: [../../evil]", "defaults"),
        ("defaults: ['${site.name}']", "defaults"),
        ("defaults: [{override /capture: '${site.name}'}]", "defaults"),
        ("about: {title: '${oc.env:TOKEN}'}", "about.title"),
        ("site: {trusted: [os]}", "site"),
        ("store: /data", "store"),
        ("runs: /data", "runs"),
        ("recipe: other", "recipe"),
        ("target: {interpreter: /tmp/evil}", "target.interpreter"),
        ("target: {setup: [/tmp/evil.sh]}", "target.setup"),
        ("reference: {launcher: [bash, -c]}", "reference.launcher"),
        ("target: {dump: /a}", "target.dump"),
        ("target: {variables: {LD_PRELOAD: /tmp/evil.so}}", "target.variables.LD_PRELOAD"),
        ("target: {variables: {PYTHONPATH: /tmp}}", "target.variables.PYTHONPATH"),
    ],
)
def test_a_recipe_is_only_data(tmp_path, text, key):
    assert [problem.key for problem in trust.find_forbidden_text(document(tmp_path, text))] == [key]


@pytest.mark.parametrize(
    "text",
    [
        "defaults: [other, /recipe/a/b, override /capture: a, override /emulate: b, _self_]\nabout: {title: x}",
        f"workload: {{model: {{_target_: {FACTORY}, weights: '${{site.paths.models}}/a'}}}}",
        "target: {variables: {HCCL_DETERMINISTIC: 'true', PYTHONHASHSEED: '0'}}",
        "target: 3",
    ],
)
def test_a_plain_recipe_may_say_what_recipes_say(tmp_path, text):
    assert list(trust.find_forbidden_text(document(tmp_path, text))) == []


def test_a_site_may_speak_of_its_machine_but_not_configure_hydra(tmp_path):
    assert (
        list(trust.find_forbidden_text(document(tmp_path, "site: {name: x}\nstore: /d\ntarget: {interpreter: /py}", "site")))
        == []
    )
    assert [
        problem.key for problem in trust.find_forbidden_text(document(tmp_path, "hydra: {x: 1}\ndefaults: [a]", "site"))
    ] == [
        "hydra",
        "defaults",
    ]


def test_names_mean_the_same_from_anywhere():
    entries = ["a/b", "/recipe/c", "_self_", {"override /capture": "x"}, {"override capture": "x"}]
    assert trust.make_defaults_absolute(entries) == [
        "/recipe/a/b",
        "/recipe/c",
        "_self_",
        {"override /capture": "x"},
        {"override /capture": "x"},
    ]


def test_inherited_recipes_are_named_as_they_are_looked_up(tmp_path):
    assert trust.list_parents(document(tmp_path, "defaults: [a/b, /recipe/c, _self_, override /capture: tensors]")) == (
        "a/b",
        "c",
    )


def test_what_a_recipe_chooses_is_listed(tmp_path):
    text = "defaults: [a/b, _self_, override /capture: digest, {override emulate: e}, {override /executor: dask}]"
    assert trust.list_choices(document(tmp_path, text)) == [("capture", "digest"), ("emulate", "e")]


PAGE = Path(__file__).parents[2] / "docs" / "recipe-safety.md"


def rows(page, column):
    """Return first cell -> second cell of the table under a heading, without marks."""
    table = page.partition(f"| {column} |")[2].partition("\n\n")[0]
    cells = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    return {first.strip("`"): second.replace("`", "") for first, second in cells}


def test_the_page_says_what_the_tables_say():
    page = PAGE.read_text(encoding="utf-8")
    assert rows(page, "section") == {section or "at the top": keys for section, keys in trust.RECIPES_MAY_SET.items()}
    listed = page.partition("## Environment variables")[2].partition("##")[0].rpartition("site file.\n")[2]
    assert listed.replace("`", "").split() == sorted(SETTABLE)
    assert all(f"precflow.workloads.{name}" in page for name in contract.FACTORIES)


def test_the_page_says_the_bounds():
    bounds = [int(number) for number in rows(PAGE.read_text(encoding="utf-8"), "what").values()]
    assert bounds == [
        documents.LARGEST_FILE,
        documents.MOST_VALUES,
        documents.DEEPEST,
        documents.LONGEST_TEXT,
        documents.LONGEST_NUMBER,
        documents.LONGEST_KEY,
        interpolation.MOST_COPIED,
        interpolation.LONGEST_COPIED,
        units.MOST_NUMBERS,
        composition.MOST_FILES,
        keys.MOST_FILES,
    ]


def test_no_switch_names_a_file_a_device_or_a_host():
    words = {word for name in SETTABLE for word in name.split("_")}
    assert words.isdisjoint("PATH HOME DIR FILE HOST IP IFNAME DEVICES CACHEDIR PLUGIN LIB PRELOAD CONFIGFILE".split())
