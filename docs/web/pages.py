"""Hook of mkdocs: pages of the repository keep their own paths, so that one link works on the site and on GitHub."""

from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pymdownx.slugs import slugify

WHERE = (  # what the site has of the repository: its pages, and the files that they show or link to
    "*.md",
    "LICENSE",
    "docs/**/*.md",
    "docs/**/*.png",
    "docs/**/*.svg",
    "docs/**/*.webp",
    "docs/**/*.json",
    "docs/ci/*",
    "docs/gallery/*.*",
    "docs/web/*.js",
    "docs/web/*.css",
    "examples/*/*.*",
    "skills/**/*.md",
    "conf/standard/*.yaml",
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages that a pattern of ``nav`` finds in its place, and name headings as GitHub does, in any language.

    A section of ``nav`` in which no pattern finds a page is left out.
    """
    root = Path(config.config_file_path).parent

    def expand(items: list[Any]) -> list[Any]:
        expanded: list[Any] = []
        for item in items:
            if isinstance(item, str) and "*" in item:
                expanded += sorted(path.relative_to(root).as_posix() for path in root.glob(item))
            elif isinstance(item, dict) and isinstance(pages := next(iter(item.values())), list):
                if inside := expand(pages):
                    expanded.append({next(iter(item)): inside})
            else:
                expanded.append(item)
        return expanded

    config.nav = expand(config.nav or [])
    config.mdx_configs.setdefault("toc", {})["slugify"] = slugify(case="lower")
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files of ``docs_dir`` by those of the repository; what the theme brought stays."""
    root = Path(config.config_file_path).parent
    for file in [*files]:
        if file.src_dir == config.docs_dir:
            files.remove(file)
    for path in sorted({path for pattern in WHERE for path in root.glob(pattern) if path.is_file()}):
        files.append(File.generated(config, path.relative_to(root).as_posix(), abs_src_path=str(path)))
    return files
