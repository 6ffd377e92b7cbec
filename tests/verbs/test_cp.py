import json

import pytest

from precflow.errors import ConfigError, StoreError
from precflow.verbs import cp, show


def test_a_copy_runs_with_the_command_that_is_told(capsys, tmp_path):
    assert cp.main(["sd_text_encoder", "recipes/mine", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (tmp_path / "recipes" / "mine.yaml").is_file()
    assert said["next"] == "precflow +recipe=recipes/mine.yaml"
    assert show.main([said["next"].removeprefix("precflow "), "about"]) == 0


def test_into_a_folder_and_never_over_a_file(tmp_path):
    (tmp_path / "there").mkdir()
    assert cp.main(["minilm", "there"]) == 0
    assert (tmp_path / "there" / "minilm.yaml").is_file()
    with pytest.raises(StoreError, match="exists"):
        cp.main(["minilm", "there"])


@pytest.mark.parametrize(("name", "word"), [("site/local", "+site=ours"), ("emulate/reorder", "emulate=ours")])
def test_other_groups(capsys, name, word):
    assert cp.main([name, f"{name.split('/')[0]}/ours.yaml"]) == 0
    assert word in capsys.readouterr().err


def test_unknown_names_and_places_are_said(tmp_path):
    with pytest.raises(ConfigError, match="sd_text_encoder"):
        cp.main(["sd_text_encodr", "x.yaml"])
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        cp.main(["minilm", "file/x.yaml"])
