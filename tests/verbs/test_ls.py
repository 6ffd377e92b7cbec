import json
import subprocess
import sys
import time

import pytest

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
    assert "not readable" in shown
    assert "What it is." in shown


def test_unknown_groups_are_refused():
    with pytest.raises(ConfigError, match="Did you mean  emulate"):
        ls.main(["emulat"])


def test_it_answers_at_once():
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "precflow", "ls"], check=True, capture_output=True)
    assert time.perf_counter() - started < 2.0  # 0.1 s on a quiet machine
