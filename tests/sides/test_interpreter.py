import os
import subprocess
import sys
from pathlib import Path

import pytest

import precflow
from precflow.config.schema import Side
from precflow.errors import SideError
from precflow.sides.interpreter import find_drivers, find_interpreter, find_origins, take_fingerprint


def test_what_it_says():
    found = take_fingerprint(Side(variables={"OMP_NUM_THREADS": "3", "MY_OWN": "1"}))
    assert set(found) == {"interpreter", "packages", "accelerators", "drivers", "machine", "variables"}
    assert found["interpreter"] == {"path": os.path.realpath(sys.executable), "version": sys.version.split()[0]}
    assert {"torch", "hydra-core", "ml-dtypes"} <= set(found["packages"])
    assert found["variables"]["OMP_NUM_THREADS"] == "3"
    assert "MY_OWN" not in found["variables"]


def test_it_is_the_same_again():
    assert take_fingerprint(Side()) == take_fingerprint(Side())


def test_torch_is_not_imported():
    script = (
        "import sys; from precflow.sides.interpreter import take_fingerprint; from precflow.config.schema import Side;"
        "take_fingerprint(Side()); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_an_installed_package_changes_it(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    side = Side(interpreter=str(tmp_path / "bare" / "bin" / "python"))
    assert take_fingerprint(side)["packages"] == {}
    site = next((tmp_path / "bare" / "lib").glob("python*/site-packages"))
    (site / "Some_Package-1.2.3.dist-info").mkdir()
    assert take_fingerprint(side)["packages"] == {"some-package": "1.2.3"}


def test_variables_of_the_shell_count(monkeypatch):
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "3")
    assert take_fingerprint(Side())["variables"]["ASCEND_RT_VISIBLE_DEVICES"] == "3"


def test_the_judges_own_interpreter_is_the_default():
    assert find_interpreter(Side()) == sys.executable


def test_a_name_is_looked_up_on_the_path(tmp_path, monkeypatch):
    (tmp_path / "python3x").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_interpreter(Side(interpreter="python3x")) == str(tmp_path / "python3x")


def test_what_is_no_python_says_so():
    with pytest.raises(SideError, match="does not answer like a Python interpreter"):
        take_fingerprint(Side(interpreter="/bin/echo"))


def test_a_missing_interpreter_is_named():
    with pytest.raises(SideError, match="interpreter /nowhere/python does not exist"):
        take_fingerprint(Side(interpreter="/nowhere/python"))


def test_a_new_toolkit_in_the_old_folder_changes_it(tmp_path):
    (tmp_path / "version.cfg").write_text("Version=8.0.RC3")
    before = find_drivers({"ASCEND_HOME_PATH": str(tmp_path)})
    assert str(tmp_path / "version.cfg") in before
    (tmp_path / "version.cfg").write_text("Version=8.1.RC1")
    assert find_drivers({"ASCEND_HOME_PATH": str(tmp_path)}) != before


def test_packages_on_the_python_path_count(tmp_path):
    (tmp_path / "te_of_the_toolkit-0.4.0.dist-info").mkdir()
    side = Side(variables={"PYTHONPATH": str(tmp_path)})
    assert take_fingerprint(side)["packages"]["te-of-the-toolkit"] == "0.4.0"


def test_the_interpreter_tells_where_a_package_lies():
    found = find_origins(Side(), ["precflow", "typing_extensions", "absent_altogether"])
    assert Path(found["precflow"][0]).samefile(Path(precflow.__file__).parent)
    assert set(found) == {"precflow", "typing_extensions"}


def test_behind_a_launcher_another_image_is_another_side_and_its_python_is_not_looked_for():
    old, new = (Side(launcher=("docker", "run", image), interpreter="/in/the/image/python") for image in ("app:1", "app:2"))
    assert take_fingerprint(old) == take_fingerprint(old) != take_fingerprint(new)
    assert find_origins(old, ["torch"]) == {}


def test_a_set_up_file_with_another_content_is_another_side_wherever_it_lies(tmp_path):
    for folder, text in (("a", "export X=1"), ("b", "export X=1"), ("c", "export X=2")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "set_env.sh").write_text(text, encoding="utf-8")
    one, same, other = (take_fingerprint(Side(setup=(str(tmp_path / name / "set_env.sh"),))) for name in "abc")
    assert one == same != other
