import pytest

from precflow.config.command_line import parse
from precflow.config.hydra_views import complete_word, show
from precflow.errors import TrustError


def test_cfg_shows_the_composed_recipe_and_leaves_no_trace(capsys, tmp_path):
    assert show(parse(["+recipe=sd_text_encoder", "--cfg", "job", "tolerance.max_rel_error=2^-10"])) == 0
    shown = capsys.readouterr().out
    assert "_target_: precflow.workloads.stable_diffusion.text_encoder" in shown
    assert "max_rel_error: 2^-10" in shown
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["defaults", "searchpath", "defaults-tree"])
def test_info_works(capsys, kind):
    assert show(parse(["+recipe=sd_text_encoder", "--info", kind])) == 0
    assert "recipe" in capsys.readouterr().out


def test_help_of_hydra_is_about_no_recipe(capsys, team):
    assert show(parse(["--hydra-help", "+recipe=sd_text_encoder"])) == 0
    assert "Hydra" in capsys.readouterr().out
    team("evil", "target: {interpreter: /owned}")
    with pytest.raises(TrustError):
        show(parse(["--hydra-help", "+recipe=evil"]))


def test_what_hydra_cannot_do_is_two():
    assert show(parse(["--cfg", "nothing", "+recipe=sd_text_encoder"])) == 2


@pytest.mark.parametrize("option", [["--cfg", "job"], ["--cfg", "hydra"], ["--info", "config"]])
def test_no_view_runs_what_is_not_trusted(team, tmp_path, option):
    team("evil", "hydra: {callbacks: {x: {_target_: builtins.open, file: hacked, mode: w}}}")
    with pytest.raises(TrustError):
        show(parse(["+recipe=evil", *option]))
    assert not (tmp_path / "hacked").exists()


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("precflow +recipe=sd", "+recipe=sd_text_encoder"),
        ("precflow recipe=sd", "recipe=sd_text_encoder"),
        ("precflow target.dt", "target.dtype="),
    ],
)
def test_tab_completes_recipes_and_keys(capsys, monkeypatch, typed, answer):
    monkeypatch.setenv("COMP_LINE", typed)
    assert complete_word(["-sc", "query=bash"]) == 0
    assert answer in capsys.readouterr().out.split()


VERBS = {"explain": False, "inspect": False, "show": True, "plan": True, "compare": False, "convert": False}


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("precflow ins", ["inspect"]),
        ("precflow co", ["compare", "convert"]),
        ("precflow show +recipe=sd_t", ["+recipe=sd_text_encoder"]),
        ("precflow plan +recipe=sd_text_encoder target.dt", ["target.dtype="]),
        ("precflow inspect sd", []),
        ("precflow explain tolerance.sta", ["tolerance.standards"]),
        ("precflow +recipe=mini", ["+recipe=minilm"]),
    ],
)
def test_tab_completes_verbs_and_what_follows_them(capsys, monkeypatch, typed, answer):
    monkeypatch.setenv("COMP_LINE", typed)
    assert complete_word(["-sc", "query=bash"], verbs=VERBS) == 0
    assert capsys.readouterr().out.split() == answer


def test_completion_can_be_installed(capsys):
    assert complete_word(["-sc", "install=bash"]) == 0
    assert "complete -F" in capsys.readouterr().out.replace("complete -o nospace -o default -F", "complete -F")
