"""Reads the header of a dump, ``dump.json``: who wrote it, from which model and inputs, and the seal of each file."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from precflow.agent import intake
from precflow.agent.contract import CHECKSUM, DUMP_FORMAT, DUMP_SCHEMA, EMPTY_HEADER, HEADER_FILE, checksum_of
from precflow.dumps.dtypes import is_floating
from precflow.dumps.layout import rank_and_step_of
from precflow.dumps.records import Count, Shape
from precflow.errors import DumpError

_AGAIN = "write the dump again, or copy it again from where it was written"
_ADDED: Mapping[str, Any] = {
    name: EMPTY_HEADER[name]
    for name in ("script", "observer", "ran", "compiled", "loss_steps", "updates", "tool", "lacks", "fused", "conversion")
}  # keys that older agents of this schema do not write, with their empty values
_MOST = 1 << 20  # steps of one range: a header is from outside
_SIDES = ("reference", "target", "golden")


@dataclass(frozen=True)
class RecordedDevice:
    """The device that the side ran on: ``name`` (npu), ``kind``, a line of ``description``, and whether it is ``emulated``."""

    name: str = ""
    kind: str = ""
    description: str = ""
    emulated: bool = False


@dataclass(frozen=True)
class ContentEntry:
    """One weight or input: content id, element type and sizes, all before any cast.

    Attributes:
        content: Its content id.
        dtype: Its element type.
        shape: Its sizes.
        rounded: Type -> content id of a weight after rounding to that type, for types of fewer bits; older agents note none.
    """

    content: str
    dtype: str
    shape: Shape
    rounded: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class ContentEntries:
    """All weights, or all inputs: one ``digest`` over all of them, and an entry for each by name."""

    digest: str = ""
    entries: Mapping[str, ContentEntry] = field(default_factory=dict)


@dataclass(frozen=True)
class RepeatCheck:
    """Whether a second run of the same side gave the same results.

    Attributes:
        checked: There was a second run.
        records: How many records were compared.
        different: Identities of those that changed.
        by: What was compared: ``bits``, ``statistics`` where nothing else is kept, or both; empty if the dump does not say.
    """

    checked: bool = False
    records: Count = 0
    different: tuple[str, ...] = ()
    by: tuple[str, ...] = ()

    @property
    def how(self) -> str:
        """How the runs were compared, in words for people: equal statistics may hide a changed bit."""
        return describe_comparison(self.by)


@dataclass(frozen=True)
class ObserverCheck:
    """Whether one step computes the same bits without capture.

    Attributes:
        checked: There was a run without capture.
        step: The step that was compared.
        different: What differs after it, in words: the loss, weights, generators.
    """

    checked: bool = False
    step: Count = 0
    different: tuple[str, ...] = ()


@dataclass(frozen=True)
class RanInAll:
    """What one rank ran in all, recorded or not.

    Attributes:
        whole: It ran to its own end; otherwise it was ended after its last recorded step, and may have had more to do.
        steps: Steps that it made.
        micro_batches: Micro batches of all its steps.
        calls: Name of a model -> calls of it, in training and in evaluation; the model without a name has ``""``.
    """

    whole: bool = True
    steps: Count = 0
    micro_batches: Count = 0
    calls: Mapping[str, Count] = field(default_factory=dict)


@dataclass(frozen=True)
class ParameterUpdates:
    """What is known of one parameter in training, whatever was recorded of it.

    Attributes:
        dtype: Its element type.
        trained: It requires a gradient.
        held: An optimizer that has stepped holds it, or a copy that is trained in its place.
        given: Runs of steps, first and last, in which an optimizer that holds it found a gradient, recorded steps or not.
        moved: Dump step -> how far the weight has moved in it, relative to its size, 0 to 2; 0: not a bit of it.
        moved_in_all: How far it has moved from the first recorded step to the end of the last.
        state: Tensor of the optimizer's state -> recorded steps that have changed it.
    """

    dtype: str = ""
    trained: bool = True
    held: bool = True
    given: tuple[tuple[Count, Count], ...] = ()
    moved: Mapping[Count, float] = field(default_factory=dict)
    moved_in_all: float = 0.0
    state: Mapping[str, tuple[Count, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class RecordedChange:
    """Something that was changed in what ran: ``what`` (of ``contract.CHANGES``), in how many places, and some of them."""

    what: str
    count: Count
    places: tuple[str, ...]


@dataclass(frozen=True)
class CompiledCode:
    """What was compiled, by torch.compile or TorchScript.

    Attributes:
        unseen: Name of each compiled module that was called -> number of modules inside it, which were not seen; functions as
            ``function NAME`` -> 0.
        eager: Names of compiled modules and functions that ran as they were written.
    """

    unseen: Mapping[str, Count] = field(default_factory=dict)
    eager: tuple[str, ...] = ()


def describe_comparison(by: Collection[str]) -> str:
    """Return how two runs were compared, in words for people.

    >>> describe_comparison(["statistics"])
    'by statistics'

    Args:
        by: ``bits``, ``statistics``, or both.
    """
    if not by:
        return "in a way that the dump does not name"
    if "statistics" not in by:
        return "bitwise"
    return "bitwise, or by statistics where these are all that is kept" if "bits" in by else "by statistics"


@dataclass(frozen=True)
class FileSeal:
    """Size of a file of the dump, and one BLAKE2b checksum in hex, whose length gives the digest size.

    Attributes:
        bytes: Size of the file.
        blake2b: Checksum of the whole file; ``""`` for a shard.
        index: Checksum of a shard's index: the eight length bytes and the JSON. A shard is never hashed as a whole, because its
            tensors are checked by their content ids when they are read.
    """

    bytes: Count
    blake2b: str = ""
    index: str = ""


@dataclass(frozen=True)
class CountedFills:
    """How the agent distinguished mask fills (such as -1e9 in an attention mask) from ordinary numbers.

    Attributes:
        version: ``contract.FILLS_VERSION`` of the agent; 1 if the dump does not say.
        constants: The constants that it counted as fills.
    """

    version: int = 1
    constants: tuple[float, ...] = ()


@dataclass(frozen=True)
class Header:
    """The header of a dump, with exactly the keys of ``contract.EMPTY_HEADER``; ``docs/record-identity.md`` describes the file.

    Attributes:
        schema: Version of the layout.
        format: Always ``contract.DUMP_FORMAT``; says that the file is the header of a dump.
        id: Random, drawn when the side was recorded: two folders with the same id are copies of one dump.
        agent: Version of the agent that wrote it.
        side: ``reference``, ``target`` or ``golden``.
        recipe: Name of the recipe.
        declared: Hash of everything in the request that the dump depends on.
        device: Where it ran.
        dtype: Floating point type of the run.
        emulate: Emulated fault: ``name`` and ``rules``.
        facts: Environment of the side, as the agent saw it.
        determinism: Seeds and switches in force.
        capture: Levels, phases, scope and detail.
        fills: How the agent distinguished mask fills from ordinary numbers.
        weights: Content ids of the weights, before casting and before the move to the device.
        inputs: Content ids of the inputs, before casting.
        repeat: Outcome of the second run.
        observer: Outcome of the run without capture.
        ran: What each rank ran in all; empty if the dump does not say.
        compiled: What was compiled.
        losses: One for each training step; of a script or a loop of one's own, one for each recorded step.
        loss_steps: The step of each loss; empty if they are counted from 0.
        updates: Name of a parameter, with ``rank1.`` in front for those of other ranks -> what the recorded steps did to it.
        draws: Random draws, in order.
        counts: ``calls, records, tensors, bytes``.
        sites: Places in the source; calls refer to them by index.
        sites_of_ranks: The same for other processes, by rank.
        seconds: Time by part.
        dropped: Steps that were recorded and later deleted (``keep_last``), by rank, such as ``0-3,7``.
        files: Relative path -> seal.
        script: What is known of the run of a script; empty for other workloads.
        tool: The other tool that recorded it; empty for a dump of ours.
        lacks: What such a tool does not keep, in words.
        fused: Name of an operator that was computed inside of another one -> the module whose output shows it.
        conversion: What is known of a run in ONNX Runtime: versions, and the links between torch and it; empty for others.
        content: Hash that identifies the evidence, without times, paths and facts.
        checksum: Checksum of everything above.
    """

    schema: int = DUMP_SCHEMA
    format: str = DUMP_FORMAT
    id: str = ""
    agent: str = ""
    side: str = ""
    recipe: str = ""
    declared: str = ""
    device: RecordedDevice = field(default_factory=RecordedDevice)
    dtype: str = ""
    emulate: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    determinism: Mapping[str, Any] = field(default_factory=dict)
    capture: Mapping[str, Any] = field(default_factory=dict)
    fills: CountedFills = field(default_factory=CountedFills)
    weights: ContentEntries = field(default_factory=ContentEntries)
    inputs: ContentEntries = field(default_factory=ContentEntries)
    repeat: RepeatCheck = field(default_factory=RepeatCheck)
    observer: ObserverCheck = field(default_factory=ObserverCheck)
    ran: tuple[RanInAll, ...] = ()
    compiled: CompiledCode = field(default_factory=CompiledCode)
    losses: tuple[float, ...] = ()
    loss_steps: tuple[Count, ...] = ()
    updates: Mapping[str, ParameterUpdates] = field(default_factory=dict)
    draws: tuple[Mapping[str, Any], ...] = ()
    counts: Mapping[str, Count] = field(default_factory=dict)
    sites: tuple[str, ...] = ()
    sites_of_ranks: Mapping[Count, tuple[str, ...]] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    dropped: Mapping[Count, str] = field(default_factory=dict)
    files: Mapping[str, FileSeal] = field(default_factory=dict)
    script: Mapping[str, Any] = field(default_factory=dict)
    tool: str = ""
    lacks: tuple[str, ...] = ()
    fused: Mapping[str, str] = field(default_factory=dict)
    conversion: Mapping[str, Any] = field(default_factory=dict)
    content: str = ""
    checksum: str = ""

    @property
    def changes(self) -> Mapping[str, RecordedChange]:
        """What was changed in what ran, by name; empty if the dump does not say."""
        return {change.what: change for change in _convert_changes(self.determinism)}

    @property
    def ranks(self) -> int:
        """Number of processes that recorded it, also where they are seen as one."""
        places = filter(None, map(rank_and_step_of, self.files))
        return len({0, *self.sites_of_ranks, *(rank for rank, _ in places)})

    @property
    def dropped_steps(self) -> frozenset[tuple[int, int]]:
        """Rank and step of each step that was recorded and later deleted."""
        return frozenset((rank, step) for rank, text in self.dropped.items() for step in _parse_numbers(text))

    @property
    def loss_of_step(self) -> dict[int, float]:
        """Training step -> its loss."""
        return dict(zip(self.loss_steps or range(len(self.losses)), self.losses, strict=True))


def _parse_numbers(text: str) -> list[int]:
    """Return the numbers of ranges as the agent writes them; none of a text that it would not write.

    >>> _parse_numbers("0-2,7"), _parse_numbers("x")
    ([0, 1, 2, 7], [])
    """
    runs = [part.partition("-") for part in text.split(",") if part.replace("-", "", 1).isdigit()]
    return [number for first, _, last in runs for number in range(int(first), min(int(last or first), int(first) + _MOST) + 1)]


@dataclass(frozen=True)
class _CaptureSection:
    """Section ``capture`` of a header, used only to check types. Every key may be missing: not only our agent writes dumps."""

    level: tuple[str, ...] = ()
    phase: tuple[str, ...] = ()
    scope: tuple[str, ...] = ()
    step: tuple[Count, ...] = ()
    rank: tuple[Count, ...] = ()
    detail: str = ""
    rules: tuple[dict[str, Any], ...] = ()
    budget: Count = 0
    keep_last: Count = 0
    weights: str = ""
    unmatched: tuple[Count, ...] = ()


@dataclass(frozen=True)
class _Emulated:
    """Section ``emulate`` of a header, used only to check types."""

    name: str
    rules: tuple[dict[str, Any], ...]


def read(path: Path) -> Header:
    """Read and check ``dump.json``.

    Args:
        path: The file itself.

    Raises:
        DumpError: It is not JSON, not the header of a dump, of another schema, changed since it was sealed, lacks a key or has
            an unknown one, or names files outside of the dump.
    """
    try:
        plain = intake.read_json(path)
    except (OSError, ValueError) as error:
        raise DumpError(f"{path} cannot be read as JSON: {describe_error(error)}", next_step=_AGAIN) from error
    if not isinstance(plain, dict) or plain.get("format") != DUMP_FORMAT:
        format_name = plain.get("format") if isinstance(plain, dict) else type(plain).__name__
        if isinstance(plain, dict) and {"task", "level", "data"} <= plain.keys():
            raise DumpError(
                f"{path} was written by msprobe, whose dumps cannot be read here",
                next_step="record both sides with a recipe or with precflow.capture in the same loop (examples/04_own_loop)",
            )
        raise DumpError(
            f"{path} is not the header of a dump: expected format {DUMP_FORMAT!r}, found {format_name!r}",
            next_step=f"give the folder that an agent wrote, with its {HEADER_FILE}",
        )
    _check_schema(path, plain)  # before the checksum, which headers of schema 1 do not have
    if plain.get(CHECKSUM) != checksum_of(plain):
        raise DumpError(f"{path} is damaged: it does not have the checksum that it was sealed with", next_step=_AGAIN)
    try:
        header = _convert(plain)
    except (TypeError, ValueError, OverflowError) as error:
        raise DumpError(f"{path} is not a whole {HEADER_FILE}: {error}", next_step=_AGAIN) from error
    outside = [name for name in header.files if not is_inside(name)]
    if outside:
        raise DumpError(
            f"{path} names files outside of its folder: {', '.join(outside)}",
            next_step="no agent writes such a header: ask where this dump comes from",
        )
    return header


def describe_error(error: Exception) -> str:
    """Return the message of an error for people; for an error of the operating system without its number and path."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


def _check_schema(path: Path, plain: Mapping[str, Any]) -> None:
    schema = plain.get("schema")
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:  # True is an int in Python
        raise DumpError(f"{path} says schema {schema!r}; expected {DUMP_SCHEMA}", next_step=_AGAIN)
    writer = f"precflow {plain.get('agent', 'of unknown version')} with {DUMP_FORMAT} schema {schema}"
    if schema > DUMP_SCHEMA:
        raise DumpError(
            f"{path} was written by a newer precflow: the agent of {writer}; this precflow reads schema {DUMP_SCHEMA}",
            next_step="update precflow here, or write the dump with this version: precflow agent",
        )
    if schema < DUMP_SCHEMA:
        raise DumpError(
            f"{path} was written by an older precflow: the agent of {writer}, which does not seal its header",
            next_step="write the dump again with this version: precflow agent",
        )


def _convert(plain: Mapping[str, Any]) -> Header:
    """Convert plain JSON data to a header, after checking that every key is there and each value has its type.

    Raises:
        TypeError, ValueError, OverflowError: A key is missing or unknown, or a value has another type.
    """
    plain = {**_ADDED, **plain}
    # msgspec would give a missing key its default and ignore an unknown one, so keys are checked first.
    _check_keys(plain, {*EMPTY_HEADER, CHECKSUM})
    for key, kind in (
        ("device", RecordedDevice),
        ("weights", ContentEntries),
        ("inputs", ContentEntries),
        ("repeat", RepeatCheck),
        ("observer", ObserverCheck),
        ("compiled", CompiledCode),
        ("fills", CountedFills),
    ):
        _check_keys(plain[key], {attribute.name for attribute in fields(kind)}, f"{key}.")
    for key in ("weights", "inputs"):
        for name, entry in dict(plain[key]["entries"]).items():
            whole = {"rounded": {}, **entry}
            _check_keys(whole, {attribute.name for attribute in fields(ContentEntry)}, f"{key}.entries.{name}.")
    for rank, each in enumerate(plain["ran"]):
        _check_keys(each, {attribute.name for attribute in fields(RanInAll)}, f"ran.{rank}.")
    for name, entry in dict(plain["updates"]).items():
        _check_keys(entry, {attribute.name for attribute in fields(ParameterUpdates)}, f"updates.{name}.")
    _check_keys(plain["counts"], set(EMPTY_HEADER["counts"]), "counts.")
    _convert_changes(plain["determinism"])
    msgspec.convert(plain["capture"], _CaptureSection)
    msgspec.convert(plain["emulate"], _Emulated)
    # `str_keys`: keys of a JSON object are always texts, but `sites_of_ranks` and `dropped` are by the number of the rank.
    header = replace(msgspec.convert({**plain, "files": {}}, Header, str_keys=True), files=parse_seals(plain["files"]))
    if header.loss_steps and len(header.loss_steps) != len(header.losses):
        raise ValueError(f"it has {len(header.losses)} losses and the steps of {len(header.loss_steps)}")
    if header.side not in _SIDES:
        raise ValueError(f"side is {header.side!r}, expected one of {', '.join(_SIDES)}")
    if not is_floating(header.dtype):
        raise ValueError(f"dtype is {header.dtype!r}, expected a floating point type such as float32")
    return header


def _convert_changes(determinism: Mapping[str, Any]) -> list[RecordedChange]:
    """Return the changes that section ``determinism`` lists; older agents list none.

    Raises:
        ValueError: One has a value of another type.
    """
    return msgspec.convert(determinism.get("changes", []) if isinstance(determinism, Mapping) else [], list[RecordedChange])


def _check_keys(plain: Any, wanted: Collection[str], place: str = "") -> None:
    """Make sure that a map has exactly the wanted keys.

    Raises:
        ValueError: A key is missing or unknown, or ``plain`` is not a map.
    """
    if not isinstance(plain, dict):
        raise ValueError(f"{place.rstrip('.')} is a {type(plain).__name__}, expected a map")  # noqa: TRY004  one error for all
    missing = [f"{place}{key}" for key in wanted if key not in plain]
    unknown = [f"{place}{key}" for key in plain if key not in wanted]
    if missing:
        raise ValueError(f"{', '.join(sorted(missing))} is missing")
    if unknown:
        raise ValueError(f"it has keys that this precflow does not know, as a newer one may write: {', '.join(unknown)}")


def parse_seals(plain: Any) -> dict[str, FileSeal]:
    """Return the seals of files by name, from the key ``files`` of a header or of ``step.json``.

    Raises:
        ValueError: A seal lacks its size or checksum, has an unknown key, or a value of another type.
    """
    if not isinstance(plain, dict):
        raise ValueError(f"files is a {type(plain).__name__}, expected a map")  # noqa: TRY004  one error for all
    for name, seal in plain.items():
        checksum = "index" if isinstance(seal, dict) and "index" in seal else "blake2b"  # of a shard, else of any other file
        _check_keys(seal, {"bytes", checksum}, f"files.{name}.")
    return msgspec.convert(plain, dict[str, FileSeal])


def is_inside(name: str) -> bool:
    """Tell whether a file name stays in the folder of its dump, on any operating system."""
    # Backslash and colon mean nothing to PurePosixPath, but on Windows `..\x` and `C:x` leave the folder.
    path = PurePosixPath(name)
    return bool(name) and not path.is_absolute() and ".." not in path.parts and "\\" not in name and ":" not in name
