"""Stage ``dump``: the workload of one side, recorded by its agent. :mod:`given_dump` has the dumps that a user gives."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from precflow import keys
from precflow.agent import intake, redaction
from precflow.agent.contract import (
    CHECKED,
    CHECKSUM,
    CHOICES_FILE,
    HEADER_FILE,
    NONE,
    RECORDED,
    WHEN_NEEDED,
    script_module,
)
from precflow.config.schema import SIDES, RunConfig
from precflow.config.sections.store_address import is_address
from precflow.config.trust import TARGET
from precflow.config.vocabulary import SEEDED, names_file
from precflow.diagnosis.given_choices import write_choices
from precflow.dumps.formats import read_dump
from precflow.dumps.protocol import Dump
from precflow.dumps.requests import CaptureRules, describe_side, dump_request, gives_choices
from precflow.environment import code_digests
from precflow.environment.requirements import check_free_disk, refuse_missing
from precflow.sides.interpreter import find_origins, take_fingerprint
from precflow.stages.artifacts import keep_read, read_once, read_plain
from precflow.stages.job import Job, Stage, StageResult, ask_agent

GIVEN_FILE = "given.json"
_REFERENCE = "dump.reference"
_KNOWN = frozenset(["precflow", "torch"])  # no digest of their code is taken: every key has their versions


def open_dump(folder: Path) -> Dump:
    """Open the dump of a sealed ``dump`` stage, whether it was made here or given."""
    return read_once(_open, folder)


def _open(folder: Path) -> Dump:  # a function of its own: `read_once` keeps what it returns
    if not is_given(folder):
        return read_dump(folder)
    return read_once(open_anything, Path(read_plain(folder / GIVEN_FILE)["path"]))


def open_anything(path: Path) -> Dump:
    """Open a dump, sealed or not."""
    return read_dump(path, allow_unsealed=True)


def keep_open(dump: Dump) -> None:
    """Let the stages of this comparison have an open dump: one of another tool is read as a whole when it is opened."""
    keep_read(open_anything, dump.path.expanduser().resolve(), dump)


def is_given(folder: Path) -> bool:
    """Return whether the dump of a sealed ``dump`` stage is the user's own."""
    return (folder / GIVEN_FILE).exists()


def read_damage(folder: Path) -> list[str]:
    """Return what was wrong with the user's own dump when every byte of it was read; ``[]`` for a dump made by a run.

    Later stages do not read all of it (inputs, for example), and a damaged dump must not lead to "aligned".
    """
    return list(read_plain(folder / GIVEN_FILE)["damage"]) if is_given(folder) else []


def declare_workload(workload: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a workload with the content of its files in place of their paths; what a script writes keeps its name.

    A log of the last run must not make this run another one, neither as a pattern of ``workload.files`` nor as an argument
    (``--log loss.jsonl``) that such a pattern matches.
    """
    written = tuple(workload.get("files", ()))
    return {name: value if name == "files" else _replace_paths(value, name, written) for name, value in workload.items()}


def _replace_paths(value: Any, key: str, written: Sequence[str]) -> Any:
    """Replace every path to an existing file or folder by a digest of its content, and every secret.

    Keys are made of the result, and two machines may have the same file at different paths. A word without a slash or a file
    ending is a path only below a ``key`` that always means files: a file that is called ``train`` may be there by chance.
    """
    if isinstance(value, Mapping):
        return {name: _replace_paths(item, name, written) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_replace_paths(item, "", written) for item in value]
    may_be_path = isinstance(value, str) and (names_file(key) or "/" in value or Path(value).suffix)
    path = _find_path(value) if may_be_path and not any(fnmatch(value, pattern) for pattern in written) else None
    return redaction.redact(value, name=key) if path is None else {"content": keys.file_digest(path)}


def _find_path(text: str) -> Path | None:
    """Return a text as a path if there is such a file or folder, else ``None``."""
    try:
        path = Path(text).expanduser()
        return path if text not in {"", SEEDED} and path.exists() else None
    except (OSError, ValueError, RuntimeError):  # a text that can be no path: too long, with a NUL, or an unknown ~user
        return None


def declare(side: str, job: Job) -> Mapping[str, Any]:
    """Return what a dump of a side depends on: the request, with the content of its files in place of their paths."""
    plain = dict(describe_side(job.config, side))
    converted = {"conversion": declare_workload(plain["conversion"])} if "conversion" in plain else {}
    return {**plain, **converted, "workload": declare_workload(plain["workload"])}


def locate(side: str, job: Job) -> Mapping[str, Any]:
    """Return where a side runs: its interpreter and machine, and the user's own code."""
    workload, written = job.config.workload, list_written(job)
    if workload.script:
        script = job.side(side).script or workload.script
        module = script_module(script)
        if module:
            package = module.partition(".")[0]
            beside = code_digests.locate(package, ["."])
            origins = {package: beside} if beside else find_origins(job.side(side), [package])
            code = code_digests.digest_packages({package}, ["."], origins, written=written)
        else:
            code = code_digests.digest_script(Path(script), written=written)
        return {"code": code, "here": take_fingerprint(job.side(side))}
    parts = [part for part in (workload.model, workload.inputs, workload.loss, workload.optimizer) if TARGET in part]
    packages = {str(part[TARGET]).partition(".")[0] for part in parts} - _KNOWN
    # The side's own interpreter is asked, because it may have another version of the package than this one.
    origins = find_origins(job.side(side), sorted(packages)) if packages else {}
    code = code_digests.digest_packages(packages, job.import_paths, origins, written=written)
    return {"code": code, "here": take_fingerprint(job.side(side))}


def list_written(job: Job) -> list[str]:
    """Return what runs write, as folders and patterns of files: the run folders, a store in a folder, the logs of a script."""
    config = job.config
    stores = [store for store in (config.store, config.site.store) if not is_address(store)]
    return [config.runs, *stores, *config.workload.files]


def _make(side: str, job: Job, folder: Path, needs: Mapping[str, Path]) -> StageResult:
    return record(side, job, folder, keys.digest(declare(side, job)), reference=needs.get(_REFERENCE))


@contextmanager
def hand_over_choices(folder: Path, reference: Path | None) -> Iterator[dict[str, str]]:
    """Write the reference's choices into a file for an agent, and remove it afterwards: it has paths of this machine.

    Args:
        folder: Where the agent works.
        reference: The reference's dump; ``None`` if the run makes its own choices.

    Yields:
        The part of a request that names the file, if there is one.
    """
    if reference is None:
        yield {}
        return
    path = folder.resolve() / CHOICES_FILE
    write_choices(path, open_dump(reference))
    try:
        yield {"choices": str(path)}
    finally:
        path.unlink(missing_ok=True)


def record(  # noqa: PLR0913  a side, and what its run is made of
    side: str,
    job: Job,
    folder: Path,
    declared_key: str,
    *,
    region: CaptureRules | None = None,
    reference: Path | None = None,
) -> StageResult:
    """Run a side and record it.

    Args:
        side: ``reference`` or ``target``.
        job: This run.
        folder: Where the dump goes.
        declared_key: Hash of what was declared.
        region: Rules of a second pass, which records only the calls that they select.
        reference: The dump whose choices the side is given, or whose batches if it runs a script; ``None`` for neither.

    Raises:
        SideError: The side refused, crashed, hung, or left no result.
        PrecflowError: The disk has less room than the recipe requires.
    """
    refuse_missing(side, check_free_disk(job.config.environment.require, shutil.disk_usage(folder).free))
    request = dump_request(
        job.config,
        side,
        folder,
        ci=job.ci,
        declared_key=declared_key,
        code=job.user_code,
        region=region,
        # A killed attempt left these; its finished steps are not run again, unless they are to be compared with plain ones or
        # are given choices, which only a recorded step is.
        resume=any(folder.glob("rank*")) and job.config.determinism.observer != CHECKED and reference is None,
    )
    if job.config.workload.script:
        batches = str(open_dump(reference).path.resolve()) if reference is not None else ""
        _run_script(side, job, {**request, "batches": batches}, folder)
    else:
        with hand_over_choices(folder, reference) as choices:
            ask_agent(job, side, {**request, **choices}, folder)
    header = read_dump(folder).header
    words = [f"{header.counts['records']} records", f"{header.counts['bytes'] / 1e6:.0f} MB"]
    if header.script:
        steps, missing = header.script["steps"], header.script["missing_files"]
        words.insert(0, f"{steps} step{'s' if steps != 1 else ''} of {header.script['file']}")
        exchanged = header.script.get("batches") or {}
        if exchanged.get("kind") == "fed":
            words.append(f"{exchanged['calls']} batches of the reference, {exchanged['different']} in place of others")
        words += [f"no file for {', '.join(missing)}"] if missing else []
    if header.observer.checked:
        words.append("changed by watching" if header.observer.different else "the same bits without capture")
    if "choices_given" in header.determinism:
        given = len(header.determinism["choices_given"])
        words.append(f"given the reference's choice at {given} call{'s' * (given != 1)}")
    if header.repeat.checked:
        different = len(header.repeat.different)
        words.append(f"{different} not repeatable" if different else f"repeats {header.repeat.how}")
        idle = [f"capture.rules[{number}]" for number in header.capture.get("unmatched", ())]
        words += [f"{', '.join(idle)} matched no call"] if idle else []
    return StageResult(note=", ".join(words), seal=identify(folder))


def _run_script(side: str, job: Job, request: Mapping[str, Any], folder: Path) -> None:
    """Run a script, twice if it is to be compared with itself: each run needs a process of its own.

    With ``when_needed`` it is run with deterministic algorithms, twice again, if the two runs differ.
    """
    determinism, capture = request["determinism"], request["capture"]
    ways = ("native", "warn") if determinism["algorithms"] == WHEN_NEEDED else (determinism["algorithms"],)
    # The first run has to show whether the bits are the same. Statistics are compared as they are: they come without bits.
    details = {capture["detail"], *(rule.get("detail") or capture["detail"] for rule in capture["rules"])}
    less = {**capture, "budget": 0}
    if "statistics" not in details:
        less = {**less, "detail": "digest", "rules": [_as_digest(rule) for rule in capture["rules"]]}
    first, plain = folder / "first", folder / "plain"
    for way in ways:
        asked = {**request, "determinism": {**determinism, "algorithms": way}, "resume": False}
        if determinism["repeat"]:
            shutil.rmtree(first, ignore_errors=True)
            first.mkdir()
            ask_agent(job, side, {**asked, "output": str(first.resolve()), "capture": less}, first)
            asked = {**asked, "first_run": str(first.resolve())}
        if determinism.get("observer") == CHECKED:
            shutil.rmtree(plain, ignore_errors=True)
            plain.mkdir()
            ask_agent(job, side, {**asked, "action": "plain", "output": str(plain.resolve())}, plain)
            asked = {**asked, "plain_run": str(plain.resolve())}
        ask_agent(job, side, asked, folder)
        for earlier in (first, plain):
            shutil.rmtree(earlier, ignore_errors=True)
        if not read_dump(folder).header.repeat.different:
            break


def _as_digest(rule: Mapping[str, Any]) -> dict[str, Any]:
    """Return a rule of the capture that keeps digests of what it kept more of."""
    return {**rule, "detail": NONE if rule.get("detail") == NONE else "digest", "slices": "", "sample": 1.0}


def identify(folder: Path) -> str:
    """Return a digest of a sealed dump's header, which has the checksum of every file; later stages are keyed on it.

    Durations, the hash of the recipe and the random id are left out: a dump that differs only in them gives the same results.
    """
    plain: dict[str, Any] = intake.read_json(folder / HEADER_FILE)  # not checked again: the caller has opened the dump
    return keys.digest({key: value for key, value in plain.items() if key not in {"id", "seconds", "declared", CHECKSUM}})


def _read_reference(config: RunConfig, side: str) -> tuple[str, ...]:
    """Return the dump of the reference if a side is given its choices, or the batches that it has recorded."""
    return (_REFERENCE,) if side == "target" and (gives_choices(config) or config.determinism.data == RECORDED) else ()


STAGE = Stage(
    name="dump",
    place=20,
    reads=("environment",),
    declare=declare,
    make=_make,
    parts=lambda config: [side for side in SIDES if not (getattr(config, side).dump or getattr(config, side).log)],
    of_side=True,
    reads_also=_read_reference,
    without_records=True,
    locate=locate,
    resumes=True,
)
