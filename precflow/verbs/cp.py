"""``precflow cp NAME DEST``: copy a recipe (or ``site/NAME``, ``standard/NAME``, ``rule/NAME``...) in order to change it."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from precflow.config.search_path import DATA_GROUPS, GROUPS, describe_not_found, find, list_folders
from precflow.errors import ConfigError, StoreError
from precflow.verbs import Verb, make_parser, print_json, say

VERB = Verb(40, "copy a recipe to change it", "cp sd_text_encoder my_model", other_words=("new", "init", "create", "copy"))


def main(arguments: Sequence[str]) -> int:
    """Copy one file, never overwriting an existing one, and print the command that uses the copy; return 0.

    Raises:
        ConfigError: There is no such name.
        StoreError: The destination exists or cannot be written.
    """
    options = make_parser("cp", "NAME DEST")
    options.add_argument("name", help="a recipe, or GROUP/NAME")
    options.add_argument("destination", type=Path, metavar="DEST", help="a file or a folder")
    chosen = options.parse_args(arguments)
    group, _, name = chosen.name.partition("/")
    if group not in (*GROUPS, *DATA_GROUPS) or not name:  # a recipe; its own name may have slashes
        group, name = "recipe", chosen.name
    within = list_folders(chosen.config_dir)
    document = find(group, name, within)
    if document is None:
        raise ConfigError(f"{chosen.name}: {describe_not_found(group, name, within)}")
    destination = chosen.destination.expanduser()
    if destination.is_dir():
        destination /= f"{Path(name).name}.yaml"
    elif destination.suffix not in (".yaml", ".yml"):
        destination = destination.with_name(f"{destination.name}.yaml")
    if destination.exists():
        raise StoreError(f"{destination} exists and is not written over", next_step="name another file")
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(document.path, destination)
    except OSError as error:
        raise StoreError(f"{destination} cannot be written: {error.strerror}") from error
    command = describe_next_command(group, destination)
    if chosen.json:
        print_json({"copied": str(document.path), "to": str(destination), "next": command})
    else:
        say(f" {destination} is yours to change. Next:\n   {command}")
    return 0


def describe_next_command(group: str, file: Path) -> str:
    """Return the command line that uses a copied file."""
    if group == "recipe":
        return f"precflow {shlex.quote(f'+recipe={file}')}"
    if group == "site":
        return f"PRECFLOW_SITES={shlex.quote(str(file.parent))} precflow +recipe=NAME {shlex.quote(f'+site={file.stem}')}"
    # --config-dir takes the folder above `standard/` or `standards/`. Rules of such a folder always apply, so no override
    # chooses them.
    root = file.parent.parent if file.parent.name in (group, f"{group}s") else file.parent
    if group in {"known_issue", "compatibility"}:
        return f"precflow doctor --config-dir {shlex.quote(str(root))}"
    if group == "scan":
        return f"precflow scan TREE --config-dir {shlex.quote(str(root))}"
    chosen = {"standard": f"tolerance.standards=[{file.stem}]", "rule": "", "whatif": f"whatif={file.stem}"}.get(
        group, f"{group}={file.stem}"
    )
    return f"precflow --config-dir {shlex.quote(str(root))} +recipe=NAME {shlex.quote(chosen) if chosen else ''}".rstrip()
