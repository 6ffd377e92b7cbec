import json
import zipfile

import pytest

from precflow.errors import StoreError
from precflow.verbs import agent


def test_the_agent_is_one_file(capsys, tmp_path):
    assert agent.main(["--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["agent"] == "precflow-agent.pyz"
    assert said["bytes"] == (tmp_path / "precflow-agent.pyz").stat().st_size
    assert "precflow/agent/contract.py" in zipfile.ZipFile(tmp_path / "precflow-agent.pyz").namelist()


def test_into_a_folder(capsys, tmp_path):
    (tmp_path / "there").mkdir()
    assert agent.main(["there"]) == 0
    assert (tmp_path / "there" / "precflow-agent.pyz").is_file()
    assert "request.json" in capsys.readouterr().err


def test_where_nothing_can_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        agent.main(["file/x.pyz"])
