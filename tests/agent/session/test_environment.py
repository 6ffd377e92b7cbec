import getpass
import json
import subprocess
import sys
from pathlib import Path

import pytest

from precflow.agent.devices.cpu import Cpu
from precflow.agent.session import environment
from precflow.agent.variables import select_recorded


@pytest.fixture(scope="module")
def found():
    return environment.collect(Cpu())


def test_every_section_is_there(found):
    assert list(found) == ["system", "python", "torch", "device", "switches", "packages", "variables"]
    assert found["device"]["kind"] == "cpu"
    assert found["device"]["emulated"] is False
    assert found["torch"]["version"].startswith("2.")


def test_facts_are_two_levels_of_json_scalars(found):
    assert json.loads(json.dumps(found)) == found
    for section in found.values():
        assert all(isinstance(value, (str, bool)) for value in section.values())


def test_packages_are_normalized_and_sorted(found):
    assert list(found["packages"]) == sorted(found["packages"])
    assert "torch" in found["packages"]
    assert "typing-extensions" in found["packages"]


def test_packages_are_read_from_the_header_of_what_describes_them(tmp_path):
    described = {
        "Some_Thing-1.2.dist-info/METADATA": "Name: Some_Thing\nVersion: 1.2\n\nName: other\nVersion: 9\n",
        "old.egg-info/PKG-INFO": "Metadata-Version: 1.1\nName: old\nVersion: 0.3\nDescription: of\n        Name: nothing\n",
        "older-0.1.egg-info": "Metadata-Version: 1.0\nName: older\nVersion: 0.1\n",
        "broken-1.dist-info/RECORD": "",
    }
    for name, text in described.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    code = (
        "import importlib.metadata, json, sys; from precflow.agent.session import environment;"
        "sys.path[:] = sys.argv[1:]; print(json.dumps(environment.list_packages()))"
    )  # in a process of its own: what other tests have imported brings finders of packages along
    said = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True).stdout
    assert json.loads(said) == {"old": "0.3", "older": "0.1", "some-thing": "1.2"}


def test_home_folders_become_a_tilde(monkeypatch):
    monkeypatch.setenv("HOME", "/data/ann")
    assert environment.hide_homes("/data/ann/lib:/data/ann:/data/anna") == "~/lib:~:/data/anna"
    assert environment.hide_homes("/home/bob/x /Users/eve/y") == "~/x ~/y"


def test_the_root_folder_as_home_changes_nothing(monkeypatch):
    monkeypatch.setenv("HOME", "/")
    assert environment.hide_homes("/opt/lib") == "/opt/lib"


def test_nobody_is_named(monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(Path.home() / "lib") + ":/home/somebody/lib")
    monkeypatch.setenv("HCCL_SECRET", "hunter2")
    text = json.dumps(environment.collect(Cpu()))
    assert "hunter2" not in text
    assert "somebody" not in text
    assert f"{Path.home()}/" not in text
    assert getpass.getuser() + "@" not in text


def test_only_variables_that_matter_are_kept():
    given = {"OMP_NUM_THREADS": "2", "ASCEND_RT_VISIBLE_DEVICES": "0", "PATH": "/bin", "USER": "ann", "NCCL_AUTH": "x"}
    assert select_recorded(given) == {"ASCEND_RT_VISIBLE_DEVICES": "0", "NCCL_AUTH": "(redacted)", "OMP_NUM_THREADS": "2"}
