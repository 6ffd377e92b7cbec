import json
import os
import subprocess
import sys
import time

import pytest

from precflow.config.documents import read
from precflow.errors import ConfigError
from precflow.verbs import ls


def test_recipes_with_title_owner_and_origin(capsys, team):
    team("ours/训练", "about: {title: Ours, owner: us}")
    assert ls.main([]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert rows["sd_text_encoder"].split()[-2:] == ["precflow", "precflow"]
    assert rows["ours/训练"].split()[1:] == ["Ours", "us", "PRECFLOW_RECIPES"]


@pytest.mark.parametrize("group", ["recipe", "site", "emulate", "standard", "metric", "capture", "sites", "recipes"])
def test_every_group_is_listed_also_as_json(capsys, group):
    assert ls.main([group, "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)["entries"]
    assert entries
    assert all(entry["name"] and entry["title"] for entry in entries)


def test_a_broken_file_is_shown_and_hides_nothing(capsys, team):
    team("broken", "a: [\n")
    team("fine", "# What it is.\nabout: {owner: us}")
    assert ls.main([]) == 0
    shown = capsys.readouterr().out
    assert "not usable: is not YAML" in shown
    assert "(recipes/broken.yaml:2)" in shown
    assert "What it is." in shown


def test_a_file_that_never_ends_is_named_at_once(capsys, team, tmp_path):
    team("bomb", "a0: &a0 {x: 1}\n" + "\n".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, 30)))
    team("large", "#" * 3_000_000)
    team("empty", "# nothing\n")
    os.mkfifo(tmp_path / "recipes" / "pipe.yaml")
    started = time.process_time()
    assert ls.main([]) == 0
    assert time.process_time() - started < 3
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    for name, said in {
        "bomb": "aliases that repeat themselves",
        "large": "larger than",
        "empty": "is empty",
        "pipe": "is not a regular file",
    }.items():
        assert f"not usable: {'cannot be read: ' if name == 'pipe' else ''}" in rows[name]
        assert said in rows[name]
        assert f"recipes/{name}.yaml" in rows[name]


def test_unknown_groups_are_refused():
    with pytest.raises(ConfigError, match="Did you mean  emulate"):
        ls.main(["emulat"])


def test_it_answers_at_once_as_it_imports_nothing_heavy():
    code = "import sys; from precflow.verbs import ls; ls.main([]); print(*sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"torch", "pandas", "numpy", "hydra"}.isdisjoint(said)


def test_a_rule_is_listed_by_what_it_is_about_without_the_syntax_of_its_title(capsys):
    assert ls.main(["rule"]) == 0
    shown = capsys.readouterr().out
    assert "A normalisation adds a different epsilon to the variance." in shown
    assert "{{" not in shown
    assert "{%" not in shown


def test_a_title_with_places_to_fill_in_is_readable_without_a_comment(tmp_path):
    (tmp_path / "ours.yaml").write_text('title: "{{ operator }} is {% if a %}wrong{% endif %} here"\n', encoding="utf-8")
    assert ls._make_entry(read(tmp_path / "ours.yaml", "rule", "ours"), "").title == "... is ...wrong... here"


@pytest.mark.parametrize(
    ("typed", "meant"), [("run", "runs"), ("stor", "store"), ("recipies", "recipe"), ("standart", "standard")]
)
def test_a_group_that_was_typed_wrongly_is_named(typed, meant):
    with pytest.raises(ConfigError, match=rf"no such group: {typed}\. Did you mean +{meant} \?"):
        ls.main([typed])
