"""Lets Hydra read precflow's folders: ``+recipe=llama/attention`` reads ``recipes/llama/attention.yaml``.

Hydra alone cannot do it: it names a group after its folder (the group here is ``recipe``, the folder ``recipes/``), and it
knows one folder for a group. A recipe's keys go to the top of the configuration even without ``# @package _global_``. Whatever
:mod:`precflow.config.trust` forbids is refused here once more, so that no file gets into Hydra unchecked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from hydra.core.config_search_path import ConfigSearchPath, SearchPathElement
from hydra.core.config_store import ConfigStore
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from precflow.config import trust
from precflow.config.documents import read
from precflow.config.schema import RunConfig, plain
from precflow.config.search_path import GROUPS, OPEN_GROUPS, SearchFolder
from precflow.errors import TrustError

SCHEME = "precflow"

# Hydra makes sources and plugins by itself, so that nothing can be passed to them but in variables of the module.
_CURRENT: ContextVar[tuple[SearchFolder, ...]] = ContextVar("folders", default=())
_WITH_VALUES: ContextVar[bool] = ContextVar("with_values", default=True)


class FolderSource(ConfigSource):
    """One folder of one group, addressed as ``precflow://GROUP/absolute/folder``."""

    def __init__(self, provider: str, path: str) -> None:
        super().__init__(provider=provider, path=path)
        group, _, folder = path.partition("://")[2].partition("/")
        # The address has no slash before the folder; one of Windows begins with a drive, as in C:/recipes, and needs none.
        self._folder = SearchFolder(group, Path(f"/{folder}") if folder[1:2] != ":" else Path(folder), provider)

    @staticmethod
    def scheme() -> str:
        """Return the word before ``://`` in addresses of this source."""
        return SCHEME

    def load_config(self, config_path: str) -> ConfigResult:
        """Return one file, checked.

        Raises:
            ConfigLoadError: There is no such file, or it is not YAML.
            TrustError: It has something that :func:`precflow.config.trust.find_forbidden_text` forbids.
        """
        name = self._name(config_path)
        file = self._folder.file(name) if name else None
        if file is None:
            raise ConfigLoadError(f"no {config_path} in {self._folder.folder}")
        document = read(file, self._folder.group, name)
        if document.problems:
            raise ConfigLoadError(str(document.problems[0]))
        problems = list(trust.find_forbidden_text(document))
        if problems:
            raise TrustError(f"{file} is more than a recipe", problems=problems)
        package = document.package or ("_global_" if document.group in OPEN_GROUPS else None)
        data: dict[str, Any] = {"defaults": trust.make_defaults_absolute(document.defaults)} if document.defaults else {}
        return ConfigResult(
            config=OmegaConf.create({**data, **(document.data if _WITH_VALUES.get() else {})}),
            path=str(file),
            provider=self.provider,
            header={"package": package},
        )

    def available(self) -> bool:
        """Return whether the folder exists."""
        return self._folder.folder.is_dir()

    def is_group(self, config_path: str) -> bool:
        """Return whether a path is this group or a folder in it."""
        inside = self._inside(config_path)
        return config_path == "" or (inside is not None and (self._folder.folder / inside).is_dir())

    def is_config(self, config_path: str) -> bool:
        """Return whether a path is a file of this group."""
        name = self._name(config_path)
        return bool(name) and self._folder.file(name) is not None

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """Return the files and folders directly in a group or in a folder of it."""
        if config_path == "":
            return [] if results_filter == ObjectType.CONFIG else [self._folder.group]
        inside = self._inside(config_path)
        names: list[str] = []
        for path in (
            sorted((self._folder.folder / inside).iterdir()) if inside is not None and self.is_group(config_path) else []
        ):
            self._list_add_result(names, f"{config_path}/{path.name}", path.name, results_filter)
        return sorted(set(names))

    def _inside(self, config_path: str) -> str | None:
        group, _, rest = config_path.partition("/")
        return rest if group == self._folder.group else None

    def _name(self, config_path: str) -> str:
        return (self._inside(config_path) or "").removesuffix(".yaml")


class FoldersFirst(SearchPathPlugin):
    """Puts the folders of users and teams before ``conf``, so that their file wins over a shipped one of the same name."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Add the folders of :func:`search_in`; outside of it there are none, so other Hydra applications are not affected."""
        path = search_path.get_path()
        # Hydra calls the folder of its main function, here precflow's conf, "main". What comes before it wins.
        before = next((number for number, element in enumerate(path) if element.provider == "main"), 0)
        elements = [SearchPathElement(folder.origin, address(folder)) for folder in _CURRENT.get() if folder.group in GROUPS]
        path[before:before] = elements


def address(folder: SearchFolder) -> str:
    """Return the address of a folder in Hydra's search path."""
    return f"{SCHEME}://{folder.group}/{folder.folder.as_posix().lstrip('/')}"


def register(*, values: bool = True) -> None:
    """Tell Hydra about precflow's folders and about the schema; may be called again.

    Args:
        values: With the defaults of all keys. Hydra copies them several times, which takes half of the time that it needs for
            the order of the files alone.
    """
    Plugins.instance().register(FolderSource)
    Plugins.instance().register(FoldersFirst)
    ConfigStore.instance().store(name="schema", node=plain(RunConfig()) if values else {}, provider="precflow")


@contextmanager
def search_in(within: Sequence[SearchFolder], *, values: bool = True) -> Iterator[None]:
    """Make Hydra search these folders; without ``values`` it gets only the ``defaults`` of each file, which is quicker."""
    token, with_values = _CURRENT.set(tuple(within)), _WITH_VALUES.set(values)
    try:
        yield
    finally:
        _CURRENT.reset(token)
        _WITH_VALUES.reset(with_values)
