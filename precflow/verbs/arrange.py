"""``precflow arrange msprobe|acl RECIPE``: what another tool needs to record a dump that fits a recipe.

For teams whose runs are recorded by msprobe or by Ascend's own runtime, because precflow cannot start there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from precflow.agent.contract import API, BACKWARD, DETAILS, FORWARD, GRADIENT, MODULE
from precflow.config.suggestions import did_you_mean
from precflow.errors import ConfigError, StoreError
from precflow.verbs import Verb, make_parser, say

if TYPE_CHECKING:
    from precflow.config.schema import Capture

VERB = Verb(
    175, "the settings with which msprobe or Ascend's runtime records a side", "arrange msprobe minilm", takes_recipe=True
)

_DUMP = "dump"


class Arranged(NamedTuple):
    """What one tool needs.

    Attributes:
        file: Name of its settings file.
        settings: What stands in the file.
        words: What the user does with it, in lines.
        left_out: What the recipe asks for and the tool cannot record.
    """

    file: str
    settings: Mapping[str, Any]
    words: Sequence[str]
    left_out: Sequence[str]


def main(arguments: Sequence[str]) -> int:
    """Write the settings file and say what to do with it; return 0.

    Raises:
        ConfigError: There is no such tool, or the recipe does not compose.
        StoreError: The file exists or cannot be written.
    """
    from precflow.config.composition import compose
    from precflow.verbs.show import as_overrides

    options = make_parser("arrange", f"{'|'.join(TOOLS)} RECIPE|+recipe=NAME [key=value ...] [--out FOLDER] [--to FOLDER]")
    options.add_argument("tool", metavar="|".join(TOOLS))
    options.add_argument("words", nargs="+", metavar="RECIPE|key=value")
    options.add_argument(
        "--out", default=_DUMP, metavar="FOLDER", help=f"where the tool is to write the dump (default {_DUMP}/)"
    )
    options.add_argument("--to", type=Path, default=Path(), metavar="FOLDER", help="where the settings file goes (default .)")
    options.add_argument("--force", action="store_true", help="write over a settings file that exists")
    chosen = options.parse_args(arguments)
    if chosen.tool not in TOOLS:
        raise ConfigError(
            f"{chosen.tool}: no tool that is arranged here.{did_you_mean(chosen.tool, TOOLS)}   Tools: {', '.join(TOOLS)}"
        )
    overrides, _ = as_overrides(chosen.words)
    config = compose(overrides, config_dirs=chosen.config_dir, complete=False).config
    arranged = TOOLS[chosen.tool](config.capture, chosen.out)
    path = chosen.to / arranged.file
    if path.exists() and not chosen.force:
        raise StoreError(f"{path} exists", next_step="--force writes over it, --to FOLDER names another place")
    try:
        chosen.to.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(arranged.settings, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}", next_step="--to FOLDER names another place") from error
    lines = [
        f" {path}   {chosen.tool} records what recipe {config.recipe} asks for",
        "",
        *(f"   {line}" for line in arranged.words),
    ]
    lines += ["", *(f"   not recorded by {chosen.tool}: {what}" for what in arranged.left_out)] if arranged.left_out else []
    lines += [
        "",
        "   precflow compare REFERENCE TARGET   takes the dumps as they lie (docs/other-tools.md)",
        "   precflow +recipe=compare_dumps +site=NAME   takes the newest in the folders that the site file names as SIDE.dump",
    ]
    say("\n".join(lines))
    return 0


def arrange_msprobe(capture: Capture, out: str) -> Arranged:
    """Return msprobe's ``config.json`` and the lines that a training script needs.

    Args:
        capture: Section ``capture`` of the recipe.
        out: Where the dump goes.
    """
    levels = {MODULE, API} & set(capture.level) or {API}
    level = "mix" if len(levels) > 1 else "L0" if MODULE in levels else "L1"
    details = [rule.detail or capture.detail for rule in capture.rules] + [capture.detail]
    known = [DETAILS.index(detail) for detail in details if detail in DETAILS]
    most = DETAILS[max(known)] if known else "statistics"  # `escalating` records little first
    task = "tensor" if most == "tensors" else "statistics"
    passes = [
        word for word, phases in (("forward", {FORWARD}), ("backward", {BACKWARD, GRADIENT})) if phases & set(capture.phase)
    ]
    names = [pattern.strip("*.") for pattern in capture.scope if pattern.strip("*.")]
    own: dict[str, Any] = {"scope": [], "list": names, "data_mode": ["all"] if len(passes) != 1 else passes}
    if task == "statistics":
        own["summary_mode"] = "md5" if most == "digest" else "statistics"
    settings = {
        "task": task,
        "dump_path": out,
        "rank": list(capture.rank),
        "step": list(capture.step),
        "level": level,
        "enable_dataloader": False,
        task: own,
    }
    words = (
        'debugger = PrecisionDebugger(config_path="config.json")     from msprobe.pytorch, before the loop',
        "debugger.start(model)                                       before each step",
        "debugger.stop(); debugger.step()                            after each step",
        f"the dump will lie in {out}/step*/rank* (proc* without ranks)",
    )
    left_out = [
        *(["patterns of `capture.scope` become parts of names, which may match more modules"] if names else []),
        *(["sketches; statistics are recorded, which prove less"] if most == "sketch" else []),
        *([f"`capture.rules`: everything is recorded as {task}"] if capture.rules else []),
        *(["aten operators"] if not {MODULE, API} >= set(capture.level) else []),
        *(["the optimizer's state"] if "optimizer" in capture.phase else []),
    ]
    return Arranged("config.json", settings, words, left_out)


def arrange_acl(capture: Capture, out: str) -> Arranged:
    """Return ``acl.json``, with which Ascend's runtime dumps the operators of an offline model.

    Args:
        capture: Section ``capture`` of the recipe.
        out: Where the dump goes; the runtime wants an absolute path.
    """
    steps = "|".join(str(step) for step in capture.step)
    settings = {
        "dump": {
            "dump_path": str(Path(out).absolute()),
            "dump_mode": "all",
            "dump_op_switch": "off",
            "dump_step": steps,
            "dump_list": [{"model_name": "MODEL_NAME"}],
        }
    }
    words = (
        "put the name of the offline model in the place of MODEL_NAME",
        'aclInit("acl.json")                  in the program that runs the model; its folder must exist',
        f"the dump will lie in {Path(out).absolute()}/{{time}}/{{device}}/{{model}}/{{id}}/{{index}}",
        f"atc --mode=1 --om=MODEL.om --json={Path(out).absolute()}/graph.json       says which operators were fused",
    )
    whole = capture.scope in {(), ("*",)}
    return Arranged("acl.json", settings, words, () if whole else ("`capture.scope`: every operator is recorded",))


TOOLS: Mapping[str, Callable[[Capture, str], Arranged]] = {"msprobe": arrange_msprobe, "acl": arrange_acl}
