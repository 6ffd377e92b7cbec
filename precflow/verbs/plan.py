"""``precflow plan +recipe=NAME [key=value ...]``: show which stages would run, which are kept, and why."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from precflow.verbs import Verb, make_parser, print_json, say, write

VERB = Verb(
    60,
    "what a run would do, and why",
    "plan +recipe=sd_text_encoder",
    other_words=("dryrun", "dry-run", "preview"),
    takes_recipe=True,
)


def main(arguments: Sequence[str]) -> int:
    """Print the plan of a run; return 0. No values are computed: the sizes of dumps follow from shapes and element types.

    Raises:
        ConfigError: The recipe does not compose.
    """
    from precflow.config.composition import compose
    from precflow.run.plan import build_plan, render_plan
    from precflow.verbs.show import as_overrides

    options = make_parser("plan", "RECIPE|+recipe=NAME [key=value ...] [--sizes]")
    options.add_argument("words", nargs="+", metavar="RECIPE|key=value")
    options.add_argument("--sizes", action="store_true", help="tell what dumps take, as capture.budget does: may take seconds")
    chosen = options.parse_args(arguments)
    overrides, _ = as_overrides(chosen.words)
    composed = compose(overrides, config_dirs=chosen.config_dir)
    plan = build_plan(composed, sizes=chosen.sizes, say=lambda text: say(f" to tell sizes: {text}"))
    if chosen.json:
        print_json(plan.as_json())
    else:
        plain = (
            composed.config.output == "ci"
            or bool(os.environ.get("CI"))
            or (sys.stdout.encoding or "").lower() not in ("utf-8", "utf8")
        )
        write(render_plan(plan, ascii_only=plain))
    return 0
