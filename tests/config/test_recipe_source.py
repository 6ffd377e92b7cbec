import pytest
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigLoadError

from precflow.config.recipe_source import FolderSource, address
from precflow.config.search_path import SearchFolder
from precflow.errors import TrustError


@pytest.fixture
def source(tmp_path):
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "attention.yaml").write_text("defaults: [base]\nabout: {title: x}\n")
    (tmp_path / "base.yaml").write_text("# @package _global_\n")
    (tmp_path / "evil.yaml").write_text("hydra: {x: 1}\n")
    (tmp_path / "broken.yaml").write_text("a: [\n")
    return FolderSource("test", address(SearchFolder("recipe", tmp_path, "test")))


def test_a_file_without_header_goes_to_the_top(source):
    loaded = source.load_config("recipe/llama/attention")
    assert loaded.header == {"package": "_global_"}
    assert loaded.config == {"defaults": ["/recipe/base"], "about": {"title": "x"}}


def test_other_groups_keep_their_package(tmp_path):
    (tmp_path / "x.yaml").write_text("level: [api]\n")
    source = FolderSource("test", address(SearchFolder("capture", tmp_path, "test")))
    assert source.load_config("capture/x.yaml").header == {"package": None}


def test_what_is_there_and_what_is_not(source):
    assert source.available()
    assert source.is_config("recipe/base")
    assert source.is_config("recipe/llama/attention.yaml")
    assert not any(source.is_config(path) for path in ("recipe/none", "config", "other/base", "recipe/../base"))
    assert source.is_group("")
    assert source.is_group("recipe")
    assert source.is_group("recipe/llama")
    assert not source.is_group("other")


def test_lists_are_by_kind(source):
    assert source.list("", ObjectType.GROUP) == ["recipe"]
    assert source.list("", ObjectType.CONFIG) == []
    assert source.list("recipe", ObjectType.CONFIG) == ["base", "broken", "evil"]
    assert source.list("recipe", ObjectType.GROUP) == ["llama"]
    assert source.list("other", None) == []


@pytest.mark.parametrize(
    ("path", "error"), [("recipe/none", ConfigLoadError), ("recipe/broken", ConfigLoadError), ("recipe/evil", TrustError)]
)
def test_hydra_gets_nothing_that_was_not_checked(source, path, error):
    with pytest.raises(error):
        source.load_config(path)
