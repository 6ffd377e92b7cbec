"""``precflow arrange``: settings for other tools, which these tools take."""

import json
import subprocess
import sys

import pytest

from precflow.cli import main

RECORD = """
import json, sys
import torch
from msprobe.pytorch import PrecisionDebugger
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU())
debugger = PrecisionDebugger(config_path="config.json")
for _ in range(3):
    debugger.start(model)
    model(torch.ones(2, 3)).sum().backward()
    debugger.stop()
    debugger.step()
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["capture.detail=tensors"], {"task": "tensor", "level": "mix"}),
        (["capture.detail=statistics", "capture.level=[module]"], {"task": "statistics", "level": "L0"}),
        (["capture.detail=digest", "capture.level=[api]"], {"task": "statistics", "level": "L1"}),
    ],
)
def test_the_recipe_decides_what_msprobe_records(here, words, expected):
    assert main(["arrange", "msprobe", "sd_text_encoder", *words, "capture.step=[0,2]"]) == 0
    settings = json.loads((here / "config.json").read_text())
    assert {key: settings[key] for key in expected} == expected
    assert settings["step"] == [0, 2]
    if "capture.detail=digest" in words:
        assert settings["statistics"]["summary_mode"] == "md5"


@pytest.mark.slow
@pytest.mark.xdist_group("foreign")
def test_msprobe_takes_its_settings_and_we_take_its_dump(here, capsys):
    assert main(["arrange", "msprobe", "sd_text_encoder", "capture.step=[1]", "--out", "gpu"]) == 0
    assert "debugger.start(model)" in capsys.readouterr().err
    subprocess.run([sys.executable, "-c", RECORD], check=True, capture_output=True)
    assert [folder.name for folder in (here / "gpu").iterdir()] == ["step1"]
    assert main(["inspect", "gpu"]) == 0


def test_ascend_gets_an_absolute_path_and_steps(here):
    assert main(["arrange", "acl", "sd_text_encoder", "capture.step=[0,1]", "--to", "there"]) == 0
    dump = json.loads((here / "there" / "acl.json").read_text())["dump"]
    assert dump["dump_path"] == str(here / "dump")
    assert dump["dump_step"] == "0|1"


def test_what_a_tool_cannot_record_is_said(capsys):
    words = ["capture.level=[module,operator]", "capture.phase=[forward,optimizer]", "capture.detail=sketch"]
    assert main(["arrange", "msprobe", "sd_text_encoder", *words]) == 0
    told = capsys.readouterr().err
    assert "not recorded by msprobe: sketches" in told
    assert "not recorded by msprobe: aten operators" in told


def test_bad_words(here, capsys):
    assert main(["arrange", "msprob", "sd_text_encoder"]) == 2
    assert "msprobe" in capsys.readouterr().err
    (here / "config.json").write_text("{}")
    assert main(["arrange", "msprobe", "sd_text_encoder"]) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["arrange", "msprobe", "sd_text_encoder", "--force"]) == 0
