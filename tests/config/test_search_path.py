from pathlib import Path

import pytest

from precflow.config import search_path
from precflow.errors import ConfigError


def test_shipped_recipes_are_found():
    assert {"sd_text_encoder", "minilm", "compare_dumps"} <= set(search_path.list_names("recipe", search_path.list_folders()))


def test_a_team_wins_over_the_shipped_ones(team):
    file = team("minilm", "about: {title: ours}")
    document = search_path.find("recipe", "minilm", search_path.list_folders())
    assert (document.path, document.data) == (file.resolve(), {"about": {"title": "ours"}})


def test_the_command_line_wins_over_the_team(team, tmp_path):
    team("x", "about: {title: team}")
    (tmp_path / "here" / "recipes").mkdir(parents=True)
    (tmp_path / "here" / "recipes" / "x.yaml").write_text("about: {title: here}")
    assert search_path.find("recipe", "x", search_path.list_folders([tmp_path / "here"])).data["about"]["title"] == "here"


@pytest.mark.parametrize("name", ["llama/attention", "我的 配方", "<script>", "x" * 200, "a.b"])
def test_names_of_any_kind(team, name):
    team(name, "about: {title: x}")
    assert name in search_path.list_names("recipe", search_path.list_folders())
    assert search_path.find("recipe", name, search_path.list_folders()).name == name


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "", "a/../../secret", "x" * 300, "a\0b"])
def test_a_name_never_leads_out(team, tmp_path, name):
    team("x", "")
    (tmp_path / "secret.yaml").write_text("a: 1")
    assert search_path.find("recipe", name, search_path.list_folders()) is None


def test_hidden_files_are_not_listed(team):
    team(".hidden/x", "")
    assert not any("hidden" in name for name in search_path.list_names("recipe", search_path.list_folders()))


def test_folders_that_do_not_exist_are_all_named(monkeypatch):
    monkeypatch.setenv("PRECFLOW_RECIPES", "/no/where")
    monkeypatch.setenv("PRECFLOW_SITES", "/no/site")
    with pytest.raises(ConfigError) as refused:
        search_path.list_folders([Path("/no/dir")])
    assert {problem.key for problem in refused.value.problems} == {"/no/where", "/no/site", "/no/dir"}


def test_sites_come_from_variable_and_user_folder(sites):
    sites("here", "site: {name: here}")
    folder = search_path.user_folder() / "site"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("site: {name: mine}")
    found = search_path.list_names("site", search_path.list_folders())
    assert {"here", "mine", "local"} <= set(found)
    assert found["mine"].origin == "user configuration"


def test_what_is_not_found_names_neighbours_and_folders(team, tmp_path):
    team("x", "")
    said = search_path.describe_not_found("recipe", "sd_text_encodr", search_path.list_folders())
    assert "Did you mean  sd_text_encoder" in said
    assert "Searched: recipes, " in said
    assert "no such file" in search_path.describe_not_found("recipe", "./mine.yaml", search_path.list_folders())
    assert "See `precflow ls`." in search_path.describe_not_found("recipe", "qqqqqqqq", search_path.list_folders())
    few = [folder for folder in search_path.list_folders() if folder.origin != search_path.SHIPPED]
    assert "There are: x." in search_path.describe_not_found("recipe", "qqqqqqqq", few)


@pytest.mark.parametrize(("recipe", "groups"), [(False, {"emulate"}), (True, {"recipe"})])
def test_a_teams_folder_needs_no_recipes(tmp_path, monkeypatch, recipe, groups):
    (tmp_path / "emulate").mkdir()
    if recipe:  # beside the folder: a folder of recipes, some of which are in subfolders
        (tmp_path / "ours.yaml").write_text("about: {title: ours}")
    monkeypatch.setenv("PRECFLOW_RECIPES", str(tmp_path))
    found = {entry.group for entry in search_path.list_folders() if entry.folder.is_relative_to(tmp_path.resolve())}
    assert found == groups
