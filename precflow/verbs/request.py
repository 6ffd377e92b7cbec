"""``precflow request RECIPE sides=[SIDE]``: write the request that the agent of one side reads.

It is for machines where precflow cannot start the agent itself, such as a cluster with a job queue.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from precflow.agent import redaction
from precflow.config.schema import Side
from precflow.config.sections.whatifs import REFERENCE_CHOICE
from precflow.config.vocabulary import ESCALATING
from precflow.errors import ConfigError, StoreError
from precflow.verbs import Verb, make_parser, say, write

VERB = Verb(
    170, "what the agent of one side is asked, for a job that others start", "request minilm sides=[target]", takes_recipe=True
)

_AGENT, _FILE = "precflow-agent.pyz", "request.json"


def main(arguments: Sequence[str]) -> int:
    """Print the request on stdout, and the shell commands of the job on stderr; return 0.

    Raises:
        ConfigError: The recipe does not compose, ``sides`` is not one side, or that side has nothing to run.
        StoreError: The file cannot be written.
    """
    from precflow.config.composition import compose
    from precflow.verbs.show import as_overrides

    options = make_parser("request", "RECIPE|+recipe=NAME sides=[SIDE] [key=value ...] [--out FOLDER] [--import-path FOLDER]")
    options.add_argument("words", nargs="+", metavar="RECIPE|key=value")
    options.add_argument("--out", default="", metavar="FOLDER", help="where the job is to write the dump; else dump.SIDE")
    options.add_argument(
        "--import-path",
        action="append",
        default=[],
        metavar="FOLDER",
        help="where the job finds the recipe's own modules; else .",
    )
    options.add_argument("--to", type=Path, metavar="FILE", help="write the request there, not on stdout")
    chosen = options.parse_args(arguments)
    overrides, _ = as_overrides(chosen.words)
    composed = compose(overrides, config_dirs=chosen.config_dir, complete=False)
    if len(composed.config.sides) != 1:
        raise ConfigError("a request is for one side", next_step="sides=[target]  or  sides=[reference]")
    side = composed.config.sides[0]
    out = chosen.out or f"dump.{side}"
    request = build_request(composed, side, out=out, import_paths=chosen.import_path or ["."])
    workload, secrets = redaction.take_out(request["workload"], "workload")
    text = json.dumps({**request, "workload": workload}, indent=1)  # ASCII: whatever the terminal shows, the file reads back
    if chosen.to is None:
        write(text, folded=False)
    else:
        try:
            chosen.to.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise StoreError(f"{chosen.to} cannot be written: {error.strerror}") from error
    settings: Side = getattr(composed.config, side)
    judged = shlex.join(
        [*(redaction.redact_word(word) for word in overrides if not word.startswith("sides=")), f"{side}.dump={out}"]
    )
    say(_describe_job(request, settings, secrets, str(chosen.to or _FILE), judged))
    return 0


def build_request(composed: Any, side: str, *, out: str, import_paths: Sequence[str]) -> dict[str, Any]:
    """Return the request to record the dump of one side on another machine.

    Args:
        composed: The composed recipe.
        side: ``reference`` or ``target``.
        out: Folder for the dump, as the job sees it; a relative path starts at the job's working directory.
        import_paths: Folders where the job finds the modules that the recipe names.

    Raises:
        ConfigError: There is nothing to run, or more than one pass would be needed.
    """
    from precflow import keys
    from precflow.agent.contract import RECORDED
    from precflow.dumps.requests import UserCode, dump_request
    from precflow.run.jobs import make_job
    from precflow.stages.dump import declare

    config = composed.config
    if config.capture.detail == ESCALATING:
        raise ConfigError(
            "capture=escalating looks again into what the first pass found, which one request cannot ask",
            next_step="capture=tensors, or capture=sketch with capture.rules for what is to be looked into",
        )
    if side == "target" and REFERENCE_CHOICE in config.whatif:
        raise ConfigError(
            f"whatif={REFERENCE_CHOICE} takes the reference's choices out of its dump, which one request does not carry",
            next_step="run the target from a machine that has the reference's dump, with target.launcher or target.interpreter",
        )
    if config.determinism.data == RECORDED and side == "target":
        raise ConfigError(
            "determinism.data=recorded needs the reference's dump, which a request for another machine does not carry",
            next_step="a store that both machines reach (store=...), or determinism.data=script",
        )
    absent = (
        []
        if config.workload.script
        else [part for part in ("model", "inputs") if "_target_" not in getattr(config.workload, part)]
    )
    if absent:
        raise ConfigError(f"{side} has nothing to run: workload.{absent[0]}._target_ is missing")
    job = make_job(composed, command="")
    request = dump_request(
        config,
        side,
        Path(out),
        ci=job.ci,
        declared_key=keys.digest(declare(side, job)),
        code=UserCode(job.trusted, import_paths),
        resume=True,
    )
    return {**request, "output": out}


def _describe_job(request: Mapping[str, Any], settings: Side, secrets: Iterable[str], file: str, judged: str) -> str:
    """Return the shell commands of the job.

    Args:
        request: What the agent will read.
        settings: The recipe's section of the side.
        secrets: Keys of the values that were left out of the request: the job gets them in an environment variable.
        file: The request's file.
        judged: Overrides of the command that judges the finished dump.
    """
    from precflow.sides.launch import imply_variables, insert_into_launcher

    variables = {**imply_variables(request), **redaction.redact(settings.variables)}
    if secrets:  # the user fills in the values: what is printed here may end up in a log
        variables[redaction.VARIABLE] = json.dumps(dict.fromkeys(secrets, redaction.REDACTED))
    command = insert_into_launcher(settings.launcher, [settings.interpreter or "python", _AGENT, file])
    lines = [
        f" The job of the {request['side']}, where `precflow agent` has put {_AGENT}:",
        *(f"   . {shlex.quote(file)}" for file in settings.setup),
        *(f"   export {name}={shlex.quote(value)}" for name, value in variables.items()),
        f"   mkdir -p {shlex.quote(request['output'])}",
        f"   {shlex.join(command)}",
        f" It writes {request['output']}; started again it goes on after the finished steps. Then, where that is seen:",
        f"   precflow {judged}",
    ]
    return "\n".join(lines) + "\n"
