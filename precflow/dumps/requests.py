"""Builds requests, the JSON that tells an agent what to run and record, from a recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from precflow.agent.contract import API, CHECKED, FORWARD, LEFT_OUT, NOISES, NONE, OPERATOR, RECORDED, REQUEST_SCHEMA
from precflow.agent.selection import literal_pattern
from precflow.config.schema import Conversion, MixedPrecision, RunConfig, Side, plain
from precflow.config.sections.whatifs import REFERENCE_CHOICE
from precflow.config.vocabulary import ESCALATING

CaptureRules = Sequence[Mapping[str, Any]]

_OF_CAPTURE = tuple("level phase scope step rank detail rules budget keep_last fine weights".split())  # these change a dump
CHOICES = tuple("topk argmax argmin sort argsort max min median nanmedian mode kthvalue cummax cummin multinomial".split())
"""Operators whose choices are given even where not every call is kept with its tensors."""
_FIRST_DETAIL, _SECOND_DETAIL = "sketch", "tensors"  # of escalating capture: of everything, then of the suspect region
_NO_FAULT: Mapping[str, Any] = {"name": "", "rules": []}
_GIVEN: Mapping[str, Any] = {"choices": "reference"}  # the stage puts the file that holds them in its place
_OF_WORKLOAD = ("model", "inputs", "loss", "optimizer", "mode")
_OF_SCRIPT = ("script", "arguments", "compile", "evaluation", "stop_early", "files")
_OF_DETERMINISM = ("seed", "algorithms", "random_numbers", "dropout", "repeat")


def describe_side(config: RunConfig, side: str, *, region: CaptureRules | None = None) -> dict[str, Any]:
    """Return the part of a request that a dump of this side depends on: no paths, nothing of the machine.

    It is part of the key by which an earlier dump is found and used again.

    Args:
        config: The composed recipe.
        side: ``reference`` or ``target``. Faults are emulated on the target only.
        region: Rules of a second pass, which records only the calls that they select, with their tensors.
    """
    settings: Side = getattr(config, side)
    emulate = {"name": config.emulate.name, "rules": plain(config.emulate.rules)} if side == "target" else _NO_FAULT
    return {
        "schema": REQUEST_SCHEMA,
        "side": side,
        "device": list(settings.device),
        "dtype": settings.dtype,
        "ranks": settings.ranks,
        "emulate": dict(emulate),
        **_describe_precision(settings),
        **({} if settings.conversion == Conversion() else {"conversion": plain(settings.conversion)}),
        **(_GIVEN if side == "target" and gives_choices(config) else {}),
        "workload": _describe_workload(config, settings),
        "determinism": {
            **_part(config.determinism, _OF_DETERMINISM),
            **({} if region is None else {"repeat": False}),  # it is compared with the first pass instead
            # Absent where it is not asked for, so that keys of other runs stay.
            **({"observer": CHECKED} if config.determinism.observer == CHECKED and region is None else {}),
            **({"data": RECORDED} if config.determinism.data == RECORDED else {}),
        },
        "capture": _capture(config, region),
    }


def gives_choices(config: RunConfig) -> bool:
    """Tell whether the target is given the reference's choices in place of its own."""
    return REFERENCE_CHOICE in config.whatif


def describe_noise(config: RunConfig, dtype: str) -> dict[str, Any]:
    """Return the part of a request for disturbed runs of the reference that their noise floor depends on.

    Args:
        config: The composed recipe.
        dtype: Element type of the target: floors are those of the type that the limits are for.
    """
    described = describe_side(config, "reference")
    if config.workload.script:  # what comes after the last recorded step is of no use
        described["workload"] = {**described["workload"], "stop_early": True}
    described.pop("mixed_precision", None)
    described.pop("conversion", None)  # what rounding does is measured with torch, whatever runs the model
    described |= _describe_precision(config.target)
    determinism = {**described["determinism"], "repeat": False}
    for name in ("observer", "data"):  # of the runs that are judged
        determinism.pop(name, None)
    capture = {**described["capture"], "weights": LEFT_OUT}
    given = (
        _GIVEN if gives_choices(config) else {}
    )  # so that the floors behind a choice are of the runs that are judged by them
    return {**described, **given, "dtype": dtype, "determinism": determinism, "capture": capture, "noises": list(NOISES)}


class UserCode(NamedTuple):
    """The user's own code that a workload may name.

    Attributes:
        trusted: Packages whose functions it may name.
        import_paths: Folders to import them from, searched after the interpreter's own.
    """

    trusted: Sequence[str] = ()
    import_paths: Sequence[str] = ()


def noise_request(  # noqa: PLR0913  each is a fact of its own, and all but two go by name
    config: RunConfig,
    output: Path,
    *,
    dtype: str,
    ci: bool,
    declared_key: str,
    code: UserCode,
) -> dict[str, Any]:
    """Return the request for disturbed runs of the reference; see :func:`dump_request` for the arguments."""
    return {
        **_common(config, "reference", output, ci=ci),
        **describe_noise(config, dtype),
        "action": "noise",
        "declared": declared_key,
        "trusted": list(code.trusted),
        "import_paths": [str(path) for path in code.import_paths],
    }


def describe_as_is(config: RunConfig, side: str, *, moved: bool = False) -> dict[str, Any]:
    """Return the part of a request for a run in which the recipe changes nothing.

    Its seed stays, which a script's own follow: two runs from other seeds could not be compared.

    Args:
        config: The composed recipe.
        side: ``reference`` or ``target``.
        moved: Random numbers are drawn on the CPU, and nothing else is changed: those of two kinds of devices differ.
    """
    described = describe_side(config, side)
    workload = {**described["workload"], **({"compile": "kept", "stop_early": True} if config.workload.script else {})}
    workload.pop("learning_rate", None)
    described.pop("choices", None)
    # The first steps too: later errors have grown from them, and at a late step alone nothing could be told.
    steps = sorted({0, 1, *config.capture.step})
    return {
        **described,
        "workload": workload,
        "determinism": {
            "seed": described["determinism"]["seed"],
            "algorithms": "native",
            "random_numbers": "cpu" if moved else "device",
            "dropout": "kept",
            "repeat": False,
        },
        "capture": {"phase": list(config.capture.phase), "step": steps},
    }


def as_is_request(  # noqa: PLR0913  each is a fact of its own, and all but three go by name
    config: RunConfig,
    side: str,
    output: Path,
    *,
    moved: bool,
    ci: bool,
    declared_key: str,
    code: UserCode,
) -> dict[str, Any]:
    """Return the request for such a run; see :func:`dump_request` for the other arguments."""
    return {
        **_common(config, side, output, ci=ci),
        **describe_as_is(config, side, moved=moved),
        "action": "as_is",
        "declared": declared_key,
        "trusted": list(code.trusted),
        "import_paths": [str(path) for path in code.import_paths],
    }


def environment_request(config: RunConfig, side: str, output: Path, *, ci: bool) -> dict[str, Any]:
    """Return the request for the environment of a side, under the same switches as for its dump."""
    return {**_common(config, side, output, ci=ci), "action": "environment"}


def machine_request(config: RunConfig, side: str, output: Path, *, ci: bool) -> dict[str, Any]:
    """Return the request for the environment of a side and the state of its machine, which is answered without a device too."""
    return {**_common(config, side, output, ci=ci), "action": "machine"}


def dump_request(  # noqa: PLR0913  each is a fact of its own, and all but three go by name
    config: RunConfig,
    side: str,
    output: Path,
    *,
    ci: bool,
    declared_key: str,
    code: UserCode,
    region: CaptureRules | None = None,
    resume: bool = False,
) -> dict[str, Any]:
    """Return the request for a dump of a side.

    Args:
        config: The composed recipe.
        side: ``reference`` or ``target``.
        output: Folder that the agent writes to; it exists.
        ci: Use an emulated device only if the recipe names no other one.
        declared_key: Hash of :func:`describe_side`.
        code: The user's own code that the workload may name.
        region: Rules of a second pass.
        resume: Continue after the steps that an agent finished in ``output`` before it was stopped.
    """
    return {
        **_common(config, side, output, ci=ci),
        **describe_side(config, side, region=region),
        "action": "dump",
        "declared": declared_key,
        "resume": resume,
        "trusted": list(code.trusted),
        "import_paths": [str(path) for path in code.import_paths],
    }


def golden_request(config: RunConfig, output: Path, *, ci: bool, declared_key: str, code: UserCode) -> dict[str, Any]:
    """Return the request for the golden run: the target's workload in another type, exact, whole and once.

    See :func:`dump_request` for the arguments.
    """
    request = dump_request(config, "target", output, ci=ci, declared_key=declared_key, code=code)
    request.pop("mixed_precision", None)
    request.pop("conversion", None)
    request["determinism"].pop("observer", None)
    return {
        **request,
        "side": "golden",
        "device": list(config.golden.device),
        "dtype": config.golden.dtype,
        "emulate": dict(_NO_FAULT),
        "determinism": {**request["determinism"], "repeat": False},
        "capture": {**request["capture"], "detail": "tensors", "rules": []},
    }


def _common(config: RunConfig, side: str, output: Path, *, ci: bool) -> dict[str, Any]:
    parts = {"parts": list(config.workload.parts)} if config.workload.parts and not config.workload.script else {}
    return {
        **describe_side(config, side),
        **parts,  # none of a dump depends on them: they are checked while the model is built
        "recipe": config.recipe,
        "output": str(output.resolve()),
        "ci": ci,
        "parent": None,
    }


def _describe_precision(side: Side) -> dict[str, Any]:
    """Return the section on mixed precision; without any it is absent, so that keys of other runs stay."""
    return {} if side.mixed_precision == MixedPrecision() else {"mixed_precision": plain(side.mixed_precision)}


def _describe_workload(config: RunConfig, settings: Side) -> dict[str, Any]:
    """Return the model workload, or the script with the arguments of this side."""
    if config.workload.script:
        arguments = {**config.workload.arguments, **settings.arguments}
        script = settings.script or config.workload.script
        described = {**_part(config.workload, _OF_SCRIPT), "script": script, "arguments": plain(arguments)}
        return {**described, "migration": settings.migration}
    workload = _part(config.workload, _OF_WORKLOAD)
    rate = config.workload.learning_rate
    return workload if rate is None else {**workload, "learning_rate": rate}  # absent, so that keys of other runs stay


def _capture(config: RunConfig, region: CaptureRules | None) -> dict[str, Any]:
    capture = _part(config.capture, _OF_CAPTURE)
    if config.capture.compiled:  # absent where it is not asked for, so that keys of other runs stay
        capture["compiled"] = config.capture.compiled
    capture["fills"] = [float(constant) for constant in config.tolerance.fills]
    rules = [{key: value for key, value in rule.items() if key != "because"} for rule in capture["rules"]]
    # A choice can be given, in both passes, only where it is recorded, and judged only if what was chosen between is kept.
    kept = {"operator": [*CHOICES], "level": [API, OPERATOR], "phase": [FORWARD], "detail": _SECOND_DETAIL}
    is_whole = capture["detail"] == _SECOND_DETAIL
    first = [] if is_whole else [*([kept] if gives_choices(config) else []), *_keep_outputs(config)]
    if region is not None:  # the first rule that matches a call decides, so the last one leaves out all other calls
        return {**capture, "detail": _SECOND_DETAIL, "rules": [*first, *region, {"detail": NONE}]}
    detail = _FIRST_DETAIL if capture["detail"] == ESCALATING else capture["detail"]
    return {**capture, "detail": detail, "rules": [*first, *rules]}


def _keep_outputs(config: RunConfig) -> list[dict[str, Any]]:
    """Return rules that keep the tensors that task metrics read, whatever else is kept."""
    places = dict.fromkeys(metric.output for metric in config.task_metrics.values())
    places |= dict.fromkeys("(model)" for metric in config.task_metrics.values() if metric.labels)
    split = [place.partition(" / ") for place in places]
    return [
        {"match": [literal_pattern(module)], "operator": [operator], "phase": [FORWARD], "detail": _SECOND_DETAIL}
        for module, _, operator in split
    ]


def _part(section: object, keys: Sequence[str]) -> dict[str, Any]:
    whole = plain(section)
    return {key: whole[key] for key in keys}
