"""The wheel carries recipes, configuration and templates, and works in a fresh environment."""

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("wheel")  # it is built and installed once
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        folder,
        ROOT,
    ]
    subprocess.run(command, check=True)
    return next(folder.glob("precflow-*.whl"))


@pytest.fixture(scope="module")
def fresh(wheel, tmp_path_factory):
    """A new virtual environment with the wheel in it; its dependencies are found where this one has them."""
    home = tmp_path_factory.mktemp("fresh")
    venv.create(home)
    site = next(home.glob("lib/python*/site-packages"))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", home / "bin" / "python"]  # its own pip would take seconds to install
    subprocess.run([*pip, "install", "--quiet", "--no-index", "--no-deps", "--force-reinstall", wheel], check=True)
    return home / "bin" / "precflow"


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["conf", "recipes", "templates"])
def test_wheel_carries_every_data_file(wheel, folder):
    inside = {name.partition(f"_data/{folder}/")[2] for name in zipfile.ZipFile(wheel).namelist() if f"_data/{folder}/" in name}
    here = {path.relative_to(ROOT / folder).as_posix() for path in (ROOT / folder).rglob("*") if path.is_file()}
    assert inside == here


@pytest.mark.slow
def test_installed_wheel_lists_and_validates_its_recipes(fresh, tmp_path):
    listed = subprocess.run([fresh, "ls"], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "sd_text_encoder" in listed.stdout
    validated = subprocess.run([fresh, "validate", "sd_text_encoder"], capture_output=True, text=True, cwd=tmp_path)
    assert validated.returncode == 0, validated.stderr


@pytest.mark.slow
def test_installed_wheel_packs_its_agent(fresh, tmp_path):
    subprocess.run([fresh, "agent"], check=True, cwd=tmp_path)
    said = subprocess.run(
        [sys.executable, "-I", tmp_path / "precflow-agent.pyz", "--version"], capture_output=True, text=True, cwd=tmp_path
    )
    assert said.returncode == 0
    assert "0.1.0" in said.stdout + said.stderr
