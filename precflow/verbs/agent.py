"""``precflow agent [DEST]``: write the one file that a side needs, for instance to copy it into a container without network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from precflow.errors import StoreError
from precflow.verbs import Verb, make_parser, print_json, say

VERB = Verb(180, "write precflow-agent.pyz, the one file that a side needs", "agent .")

_NAME = "precflow-agent.pyz"


def main(arguments: Sequence[str]) -> int:
    """Write ``precflow-agent.pyz`` and print how to start it; return 0.

    Raises:
        StoreError: The file cannot be written.
    """
    from precflow.sides.pack import build

    options = make_parser("agent", "[DEST]")
    options.add_argument("destination", nargs="?", type=Path, default=Path(_NAME), metavar="DEST", help="a file or a folder")
    chosen = options.parse_args(arguments)
    destination = chosen.destination.expanduser()
    destination = destination / _NAME if destination.is_dir() else destination
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        written = build(destination)
    except OSError as error:
        raise StoreError(f"{destination} cannot be written: {error.strerror}") from error
    size = written.stat().st_size
    if chosen.json:
        print_json({"agent": str(written), "bytes": size})
    else:
        say(f" {written}   {size / 1e3:.0f} kB; on the other machine:  python {written.name} request.json")
    return 0
