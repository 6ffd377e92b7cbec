"""Shipped folders: from a checkout, from a wheel, and from neither."""

import pytest

from precflow import resources
from precflow.errors import PrecflowError


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return the folder of a package elsewhere, with a copy of ``conf`` inside and another one beside it."""
    here = tmp_path / "site" / "precflow"
    for place in (here / "_data" / "conf", tmp_path / "site" / "conf"):
        place.mkdir(parents=True)
    monkeypatch.setattr(resources, "_PACKAGE", here)
    return here


@pytest.mark.parametrize("name", ["conf", "recipes", "templates"])
def test_every_folder_is_there(name):
    assert any(resources.directory(name).iterdir())


def test_a_checkout_has_its_own(package):
    (package.parent / "pyproject.toml").touch()
    assert resources.directory("conf") == package.parent / "conf"


def test_a_wheel_has_a_copy_and_whatever_lies_beside_it_is_somebody_else_s(package):
    assert resources.directory("conf") == package / "_data" / "conf"


def test_a_checkout_without_the_folder_takes_the_copy(package):
    (package.parent / "pyproject.toml").touch()
    (package.parent / "conf").rmdir()
    assert resources.directory("conf") == package / "_data" / "conf"


def test_an_installation_that_lacks_it_says_where_it_looked(package):
    with pytest.raises(PrecflowError, match="'recipes' is missing; looked in") as caught:
        resources.directory("recipes")
    assert str(package / "_data" / "recipes") in caught.value.message
    assert caught.value.next_step == "install precflow again"
