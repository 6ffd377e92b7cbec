"""A side in one file that travels by hand, between places with no network in common.

A bundle is a plain tar file, so anyone can look into it: first ``bundle.json`` with format, recipe, and size and checksum of
each file, then the files of the stage instances, ``NAME-KEY/FILE``. Nothing is compressed: numbers hardly shrink.

A bundle comes from somebody else. Its header is checked before anything is written: it names only stages that a bundle can
have, and no more bytes than the file itself has and the disk has room for. Members other than the plain files that it names are
refused, among them sparse ones, which are larger than what they take in the archive.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import io
import json
import re
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from precflow.agent import intake
from precflow.agent.contract import CHECKSUM, DIGEST_SIZE, checksum_of
from precflow.dumps.formats import read_dump
from precflow.errors import PrecflowError, StoreError
from precflow.files import stays_below
from precflow.run.find_runs import find_run
from precflow.run.steps import FORGONE
from precflow.run.store import FETCHING, Sealed, Store, explain_disk_errors, read_seal
from precflow.stages.artifacts import SEAL_FILE, checksum_of_file
from precflow.stages.artifacts import read_seal as read_plain_seal
from precflow.stages.dump import GIVEN_FILE, is_given
from precflow.version import __version__

FORMAT, SCHEMA = "precflow-bundle", 1
HEADER_FILE = "bundle.json"
_LARGEST_HEADER = 64_000_000  # bytes
_LARGEST_NAME = 65_536  # bytes of a member that gives the next one its long name or size; tarfile reads it as a whole
_INSTANCE = re.compile(
    rf"(dump\.(reference|target)(@2)?|({'|'.join(sorted(FORGONE))})\.(reference|target))-[0-9a-f]+(-[0-9a-f]+)?"
)
_RECIPE = re.compile(r"[\w@+-][\w.@+-]*(/[\w@+-][\w.@+-]*)*")
_PIECE = 1 << 20
_ANOTHER = "bundle it again where it was made, or copy the file again"

Tell = Callable[[int, int], None]
"""Called with the bytes that were written so far, and with all that are to be written."""


@dataclass(frozen=True)
class Bundled:
    """One stage instance of a bundle: ``NAME-KEY``, when it was made (seconds since the epoch), and its files.

    ``files`` is relative name -> (bytes, BLAKE2b checksum).
    """

    instance: str
    finished: float
    files: Mapping[str, tuple[int, str]]

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(size for size, _ in self.files.values())


@dataclass(frozen=True)
class Header:
    """What a bundle says about itself: the version that wrote it, the recipe, and its instances in order."""

    precflow: str
    recipe: str
    instances: tuple[Bundled, ...]

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(bundled.bytes for bundled in self.instances)


def choose_instances(text: str) -> tuple[str, list[Sealed]]:
    """Return the recipe, and the instances that a bundle of a run or of one side of it (``RUN:reference``) has.

    These are what another machine looks up: the side's dump, of both passes, what the side computes as it is, and with the
    reference its noise floor.

    Raises:
        StoreError: There is no such run, it has no such dump, or the dump is a folder of the user's own.
    """
    place, colon, side = text.rpartition(":")
    run = find_run(place if colon else text)
    wanted = [
        name
        for name in run.entry.instances
        if name.startswith("dump.") and (not colon or name.partition("@")[0] == f"dump.{side}")
    ]
    if not wanted:
        have = ", ".join(name for name in run.entry.instances if name.startswith("dump."))
        raise StoreError(
            f"{run.name} has no dump of {side or 'a side'}; it has {have or 'none'}", next_step="precflow bundle RUN:SIDE"
        )
    # What else of a bundled side another machine looks up.
    sides = {name.partition("@")[0].partition(".")[2] for name in wanted}
    wanted += [name for name in run.entry.instances if name.partition(".")[0] in FORGONE and name.partition(".")[2] in sides]
    store = Store(run.entry.locate_store(run.folder))
    sealed = []
    for name in wanted:
        instance = store.find(name, run.entry.instances[name])
        if instance is None:
            damage = store.find_damage(name, run.entry.instances[name]) or "it is not there"
            raise StoreError(
                f"{store.root} has no whole {name} of {run.name}: {damage}", next_step=f"make it:  {run.entry.command}"
            )
        if is_given(instance.folder):
            raise StoreError(
                f"the dump of the {name.partition('.')[2]} is a folder of your own, which {run.name} was given",
                next_step="copy that folder, and give it there as SIDE.dump=FOLDER",
            )
        sealed.append(instance)
    return read_dump(sealed[0].folder).header.recipe, sealed


def write_bundle(path: Path, recipe: str, instances: Sequence[Sealed], tell: Tell) -> Header:
    """Write instances into one file, and return its header. The file appears when it is whole.

    Raises:
        StoreError: The file exists, cannot be written, or an instance was changed since it was sealed.
    """
    if path.exists():
        raise StoreError(f"{path} exists already", next_step="name another file, or remove that one")
    bundled = [_measure(sealed) for sealed in instances]
    header = Header(__version__, recipe, tuple(bundled))
    plain: dict[str, Any] = {
        "format": FORMAT,
        "schema": SCHEMA,
        "precflow": header.precflow,
        "recipe": recipe,
        "created": datetime.datetime.now(tz=datetime.timezone.utc).isoformat(timespec="seconds"),
        "instances": [{"instance": one.instance, "finished": one.finished, "files": dict(one.files)} for one in bundled],
    }
    plain = json.loads(json.dumps(plain))
    plain[CHECKSUM] = checksum_of(plain)
    data = json.dumps(plain, ensure_ascii=False, indent=1).encode()
    part = path.with_name(f"{path.name}.part")
    written = 0
    try:
        with explain_disk_errors(path.parent), tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as archive:
            archive.addfile(_describe_member(HEADER_FILE, len(data)), io.BytesIO(data))
            for sealed, one in zip(instances, bundled, strict=True):
                for name, (size, _) in one.files.items():
                    with (sealed.folder / name).open("rb") as file:
                        archive.addfile(_describe_member(f"{one.instance}/{name}", size), file)
                    written += size
                    tell(written, header.bytes)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return header


def read_header(path: Path) -> Header:
    """Return the header of a bundle.

    Raises:
        StoreError: There is no such file, it is no bundle, or a newer precflow wrote it.
    """
    with _reading(path) as archive:
        return _read_header(path, archive)


def open_bundle(path: Path, root: Path, tell: Tell) -> list[tuple[Sealed, bool]]:
    """Verify a bundle and put its instances into a store; return each, and whether it was new there.

    Nothing is put there before the whole bundle has turned out to be what was written.

    Args:
        path: The bundle.
        root: Folder of the store, of the bundle's recipe.
        tell: Is told of progress.

    Raises:
        StoreError: The file is no bundle, was cut short or altered, is of a newer precflow, or the store cannot be written.
    """
    store = Store(root)
    header = read_header(path)
    with explain_disk_errors(root):
        (root / FETCHING).mkdir(parents=True, exist_ok=True)
        _check_room(root, header)
        work = Path(tempfile.mkdtemp(prefix="bundle-", dir=root / FETCHING))
    try:
        with _reading(path) as archive:
            if _read_header(path, archive) != header:
                raise StoreError(f"{path} was changed while it was read", next_step=_ANOTHER)
            _extract(path, archive, header, work, tell)
        taken = []
        for one in header.instances:
            sealed = read_seal(work / one.instance)
            if sealed is None or f"{sealed.name}-{sealed.key}" != one.instance:
                raise StoreError(f"{path}: {one.instance} has no usable seal", next_step=_ANOTHER)
            is_new = store.find(sealed.name, sealed.key) is None
            taken.append((store.take_in(work / one.instance, sealed.name, sealed.key), is_new))
        return taken
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _measure(sealed: Sealed) -> Bundled:
    try:
        names = [SEAL_FILE, *read_plain_seal(sealed.folder)["files"]]
        files = {name: ((sealed.folder / name).stat().st_size, checksum_of_file(sealed.folder / name)) for name in names}
    except (OSError, ValueError) as error:
        raise StoreError(f"cannot read {sealed.folder}: {error}", next_step="run the same recipe again") from error
    return Bundled(f"{sealed.name}-{sealed.key}", sealed.finished, files)


def _describe_member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)  # without user, group and time: they are nobody's business elsewhere
    member.size, member.mode = size, 0o644
    return member


def _check_room(root: Path, header: Header) -> None:
    free = shutil.disk_usage(root).free
    if header.bytes > free:
        raise StoreError(
            f"the bundle has {header.bytes / 1e6:.0f} MB, and the disk of {root} has {free / 1e6:.0f} MB free",
            next_step="free some space, or put it elsewhere: --runs DIR, --store DIR",
        )


class _Member(tarfile.TarInfo):
    """A member of a bundle: a plain file, or the long name of the next one, which is refused where it is none."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Member:
        """Return the member of a header of 512 bytes, before anything behind the header is read.

        Raises:
            tarfile.ReadError: It is a link, a device, a folder, sparse, or has a name that no file can have.
        """
        member = super().frombuf(buf, encoding, errors)
        is_name = member.type == tarfile.XHDTYPE and member.size <= _LARGEST_NAME
        if not is_name and member.type not in {tarfile.REGTYPE, tarfile.AREGTYPE}:
            raise tarfile.ReadError(f"{member.name!r} is no plain file")
        return member


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[tarfile.TarFile]:
    try:
        with intake.open_regular(path) as file, tarfile.open(fileobj=file, mode="r:", tarinfo=_Member) as archive:
            yield archive
    except PrecflowError:
        raise
    except FileNotFoundError as error:
        raise StoreError(f"there is no file {path}") from error
    except (tarfile.TarError, EOFError, ArithmeticError, LookupError, ValueError) as error:  # tarfile trusts its numbers
        is_cut = isinstance(error, EOFError) or "unexpected end" in str(error)
        problem = "was cut short" if is_cut else "is no bundle of precflow"
        raise StoreError(f"{path} {problem}: {error}", next_step=_ANOTHER) from error
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error


def _read_header(path: Path, archive: tarfile.TarFile) -> Header:
    member = archive.next()
    if member is None or member.name != HEADER_FILE or member.issparse() or member.size > _LARGEST_HEADER:
        raise StoreError(f"{path} is no bundle of precflow: expected {HEADER_FILE} first", next_step=_ANOTHER)
    stream = archive.extractfile(member)
    data = stream.read() if stream else b""
    if len(data) < member.size:
        raise StoreError(f"{path} was cut short in its header", next_step=_ANOTHER)
    try:
        header = _parse_header(data)
    except StoreError as error:
        raise StoreError(f"{path} {error.message}", next_step=error.next_step) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"the header of {path} was altered: {error}", next_step=_ANOTHER) from error
    size = path.stat().st_size
    if header.bytes > size:  # nothing is compressed
        raise StoreError(
            f"{path} was cut short or altered: it has {size} bytes, and its header names {header.bytes}", next_step=_ANOTHER
        )
    return header


def _parse_header(data: bytes) -> Header:
    """Return the header of a bundle.

    Raises:
        StoreError: A newer precflow wrote it.
        ValueError, KeyError, TypeError, AttributeError: It is not what was written.
    """
    plain = intake.parse_json(data, finite=True)
    if plain["format"] != FORMAT:
        raise ValueError(f"its format is {plain['format']!r}")
    if plain["schema"] > SCHEMA:
        versions = f"{plain['precflow']}, format {plain['schema']}; this one reads {SCHEMA}"
        raise StoreError(f"was written by a newer precflow ({versions})", next_step="update precflow here")
    if plain[CHECKSUM] != checksum_of(plain):
        raise ValueError("it does not have the checksum that it was written with")
    instances = tuple(
        Bundled(
            str(one["instance"]),
            float(one["finished"]),
            {
                name: (intake.check_count(size, f"the size of {name}"), str(checksum))
                for name, (size, checksum) in one["files"].items()
            },
        )
        for one in plain["instances"]
    )
    header = Header(str(plain["precflow"]), plain["recipe"], instances)
    if not isinstance(header.recipe, str) or not _RECIPE.fullmatch(header.recipe):
        raise ValueError(f"{_shorten(header.recipe)} is no name of a recipe")
    if not instances or len({one.instance for one in instances}) < len(instances):
        raise ValueError("it names no stage" if not instances else "it names a stage twice")
    for one in instances:
        if not _INSTANCE.fullmatch(one.instance):
            raise ValueError(f"{_shorten(one.instance)} is no dump and no noise floor, which are all that a bundle has")
        if SEAL_FILE not in one.files or GIVEN_FILE in one.files:
            raise ValueError(f"{one.instance} has no seal" if SEAL_FILE not in one.files else f"{one.instance} is elsewhere")
        outside = next((name for name in one.files if not _is_canonical(name)), None)
        if outside is not None:
            raise ValueError(f"it names a file outside of its folder: {_shorten(outside)}")
    return header


def _is_canonical(name: str) -> bool:
    """Tell whether a name stays in its folder and is the only way to write it, so that no two names are one file."""
    return stays_below(name) and PurePosixPath(name).as_posix() == name and "\0" not in name


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _extract(path: Path, archive: tarfile.TarFile, header: Header, folder: Path, tell: Tell) -> None:
    """Write the files of a bundle into a folder, each verified.

    Raises:
        StoreError: A file is missing, has other bytes, or is one that the header does not name.
    """
    left = {f"{one.instance}/{name}": file for one in header.instances for name, file in one.files.items()}
    written = 0
    while (member := archive.next()) is not None:
        if member.name not in left or member.issparse():
            raise StoreError(f"{path} was altered: {member.name} is not in its header", next_step=_ANOTHER)
        size, checksum = left.pop(member.name)
        if member.size != size:
            raise StoreError(
                f"{path} was altered: {member.name} has {member.size} bytes, its header says {size}", next_step=_ANOTHER
            )
        source = archive.extractfile(member)
        target = folder / member.name
        with explain_disk_errors(folder):
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as file:
                found = _copy(source, file) if source else ""
        if target.stat().st_size < size:
            raise StoreError(f"{path} was cut short in {member.name}", next_step=_ANOTHER)
        if found != checksum:
            raise StoreError(f"{path} was altered: {member.name} does not have the checksum in its header", next_step=_ANOTHER)
        written += size
        tell(written, header.bytes)
    if left:
        raise StoreError(f"{path} was cut short: {next(iter(left))} is missing, and {len(left) - 1} more", next_step=_ANOTHER)


def _copy(source: IO[bytes], file: IO[bytes]) -> str:
    """Copy a stream and return the checksum of its bytes."""
    digest = hashlib.blake2b(digest_size=DIGEST_SIZE)
    while piece := source.read(_PIECE):
        digest.update(piece)
        file.write(piece)
    return digest.hexdigest()
