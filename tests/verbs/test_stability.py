"""The ranking of one side on the screen, as JSON and as a page."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from precflow.agent.contract import Identity, identity_text
from precflow.errors import StoreError
from precflow.judgement.floors import Floor
from precflow.stages.artifacts import write_lines, write_value
from precflow.verbs import stability

X = np.ones((2, 8), np.float32)


@pytest.fixture
def run(build, monkeypatch, tmp_path):
    """Stand in for a run whose reference has two calls, with these floors; return the folders of its stages."""
    made = build("dump", side="reference")
    made.call("fc", "linear", [X], [X])
    made.call("act <b>", "gelu", [X], [X])
    made.call("", "", [X], [X])
    for number, line in enumerate(made.lines[0, 0][1:]):
        line["inputs"][0]["source"] = [number, "0"]
    made.write()
    noise = tmp_path / "noise"
    noise.mkdir()
    sizes = {("fc", "linear"): 1e-7, ("act <b>", "gelu"): 3e-6}
    texts = {identity_text(Identity(*name[:1], 0, name[1], 0, "forward", "output", "0", 0, 0)): sizes[name] for name in sizes}
    floors = [Floor(text, {"relative_l2": size}, {"relative_l2": "jitter"}) for text, size in texts.items()]
    write_lines(noise / "floors.jsonl", floors)
    folders = {"noise.reference": noise, "dump.reference": tmp_path / "dump"}
    found = {name: SimpleNamespace(folder=folder) for name, folder in folders.items()}
    named = SimpleNamespace(name="x@1", entry=SimpleNamespace(command="precflow +recipe=x"), find_instances=lambda: found)
    monkeypatch.setattr("precflow.run.find_runs.find_run", lambda text: named)
    return found


@pytest.mark.usefixtures("run")
def test_the_call_that_enlarges_rounding_most_comes_first(capsys):
    assert stability.main(["x", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(call["operator"], round(call["growth"])) for call in told["calls"]] == [("gelu", 30), ("linear", 2)]
    assert stability.main(["x"]) == 0
    shown = capsys.readouterr().out
    assert shown.index("gelu") < shown.index("linear")
    assert "30 ×" in shown
    assert "bit for bit" in shown


@pytest.mark.usefixtures("run")
def test_the_page_has_the_picture_and_escapes_names(tmp_path):
    assert stability.main(["x", "--page", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "<polyline" in page
    assert "act <b>" not in page


def test_a_run_without_a_floor_says_what_to_do(run, tmp_path):
    (tmp_path / "noise" / "floors.jsonl").write_text("")
    write_value(tmp_path / "noise" / "noise.json", {"problem": "no operator", "noises": []})
    with pytest.raises(StoreError, match="no operator"):
        stability.main(["x"])
    del run["noise.reference"]
    with pytest.raises(StoreError, match="has measured no noise floor of its reference"):
        stability.main(["x"])


def test_a_dump_that_is_elsewhere_is_named(run):
    del run["dump.reference"]
    with pytest.raises(StoreError, match="reference's dump of x@1 is not here"):
        stability.main(["x"])
