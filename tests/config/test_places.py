from pathlib import Path

import pytest

from precflow.config import places
from precflow.errors import ConfigError


def test_shipped_recipes_are_found():
    assert {"sd_text_encoder", "minilm", "compare_dumps"} <= set(places.names("recipe", places.places()))


def test_a_team_wins_over_the_shipped_ones(team):
    file = team("minilm", "about: {title: ours}")
    document = places.find("recipe", "minilm", places.places())
    assert (document.path, document.data) == (file.resolve(), {"about": {"title": "ours"}})


def test_the_command_line_wins_over_the_team(team, tmp_path):
    team("x", "about: {title: team}")
    (tmp_path / "here" / "recipes").mkdir(parents=True)
    (tmp_path / "here" / "recipes" / "x.yaml").write_text("about: {title: here}")
    assert places.find("recipe", "x", places.places([tmp_path / "here"])).data["about"]["title"] == "here"


@pytest.mark.parametrize("name", ["llama/attention", "我的 配方", "<script>", "x" * 200, "a.b"])
def test_names_of_any_kind(team, name):
    team(name, "about: {title: x}")
    assert name in places.names("recipe", places.places())
    assert places.find("recipe", name, places.places()).name == name


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "", "a/../../secret", "x" * 300, "a\0b"])
def test_a_name_never_leads_out(team, tmp_path, name):
    team("x", "")
    (tmp_path / "secret.yaml").write_text("a: 1")
    assert places.find("recipe", name, places.places()) is None


def test_hidden_files_are_not_listed(team):
    team(".hidden/x", "")
    assert not any("hidden" in name for name in places.names("recipe", places.places()))


def test_folders_that_do_not_exist_are_all_named(monkeypatch):
    monkeypatch.setenv("PRECFLOW_RECIPES", "/no/where")
    monkeypatch.setenv("PRECFLOW_SITES", "/no/site")
    with pytest.raises(ConfigError) as refused:
        places.places([Path("/no/dir")])
    assert {problem.key for problem in refused.value.problems} == {"/no/where", "/no/site", "/no/dir"}


def test_sites_come_from_variable_and_user_folder(sites):
    sites("here", "site: {name: here}")
    folder = places.user_folder() / "site"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("site: {name: mine}")
    found = places.names("site", places.places())
    assert {"here", "mine", "local"} <= set(found)
    assert found["mine"].origin == "user configuration"


def test_what_is_not_found_names_neighbours_and_folders(team, tmp_path):
    team("x", "")
    said = places.not_found("recipe", "sd_text_encodr", places.places())
    assert "Did you mean  sd_text_encoder ?" in said
    assert "Searched: recipes, " in said
    assert "no such file" in places.not_found("recipe", "./mine.yaml", places.places())
    assert "There are:" in places.not_found("recipe", "qqqqqqqq", places.places())
