"""``precflow bundle RUN[:SIDE] [FILE]``: seal a side into one file that travels by hand; ``precflow unbundle`` opens it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from precflow.verbs import Verb, make_parser, print_json, say, write

VERB = Verb(120, "one side of a run in one file, to carry to the other machine", "bundle runs/minilm:reference")


def main(arguments: Sequence[str]) -> int:
    """Write the file and print where it is; return 0.

    Raises:
        StoreError: There is no such run or side, or the file cannot be written.
    """
    options = make_parser("bundle", "RUN[:SIDE] [FILE]")
    options.add_argument(
        "run", metavar="RUN[:SIDE]", help="a run folder or FOLDER@NUMBER; with :reference or :target one side of it"
    )
    options.add_argument("file", nargs="?", type=Path, default=None, metavar="FILE", help="default: RECIPE-SIDE.bundle.tar")
    chosen = options.parse_args(arguments)
    from precflow.report.screens.paper import format_size
    from precflow.run import bundle, progress

    recipe, instances = bundle.choose_instances(chosen.run)
    sides = "-".join(sorted({sealed.name.partition(".")[2].partition("@")[0] for sealed in instances}))
    path = chosen.file or Path(f"{recipe.replace('/', '-')}-{sides}.bundle.tar")
    tell = progress.choose("auto", recipe, ci=False)
    with tell.working("bundle", ""):
        header = bundle.write_bundle(path, recipe, instances, lambda done, total: tell.advance(done, total, "bytes"))
    if chosen.json:
        print_json(
            {
                "file": str(path),
                "recipe": recipe,
                "bytes": header.bytes,
                "instances": [one.instance for one in header.instances],
            }
        )
        return 0
    write(str(path))
    say(f" {format_size(header.bytes)}: {', '.join(one.instance for one in header.instances)}")
    say(f" On the other machine:  precflow unbundle {path.name}")
    return 0
