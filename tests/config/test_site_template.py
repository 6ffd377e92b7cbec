"""The site template composes as it stands and leaves out no key that only a machine knows."""

from pathlib import Path

import pytest

from precflow import resources
from precflow.config.composition import compose
from precflow.verbs import cp, explain

FILE = resources.directory("conf") / "site" / "example.yaml"


@pytest.fixture(autouse=True)
def _clean(clean):
    """Take the machine's own settings away."""


def test_it_composes_and_wins_over_the_recipe():
    composed = compose(["+recipe=sd_text_encoder", "+site=example"], complete=False)
    assert composed.config.target.launcher == ("taskset", "-c", "0-7")
    assert composed.config.site.paths["models"] == "/data/models"
    assert composed.notes == ()


def test_it_has_every_key_of_a_machine():
    text = FILE.read_text(encoding="utf-8")
    of_machine = {one.key.rpartition(".")[2] for one in explain.list_all() if one.takes and one.set_by == "site, command line"}
    needless = {"address", "workers", "against", "script", "tree", "dtype"}  # their own pages of docs say what they are
    assert sorted(name for name in of_machine - needless if f"{name}:" not in text) == []


def test_it_can_be_copied(tmp_path, capsys):
    assert cp.main(["site/example", str(tmp_path / "sites" / "ours.yaml")]) == 0
    assert "+site=ours" in capsys.readouterr().err
    assert Path("sites/ours.yaml").read_text(encoding="utf-8") == FILE.read_text(encoding="utf-8")
