"""Opens the file system behind a URL, and turns its errors into ours: who refused, what was not there, what was full.

Endpoint and profile come from the site file, credentials from where the client library looks for them (for S3 its profiles and
``AWS_*`` variables). They are never part of a URL here, so that none can get into a history or a report.
"""

from __future__ import annotations

import contextlib
import errno
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from precflow.agent import redaction
from precflow.config.sections.store_address import find_problem
from precflow.errors import ConfigError, MissingExtraError, PrecflowError, StoreError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

S3 = frozenset({"s3", "s3a"})
_CONNECT_SECONDS, _READ_SECONDS, _ATTEMPTS = 10, 60, 3
_EXTRAS = {**dict.fromkeys(S3, ("s3fs", "s3"))}
_FULL = ("quota", "insufficientstorage", "insufficient storage", "507", "storage full", "xminiostoragefull", "no space left")
_REFUSED = ("forbidden", "accessdenied", "access denied", "403", "signaturedoesnotmatch", "invalidaccesskeyid", "expiredtoken")
_SILENT = (
    "timeout",
    "timed out",
    "could not connect",
    "connection",
    "endpoint url",
    "unreachable",
    "name or service not known",
)


@dataclass(frozen=True)
class Address:
    """Where a store is.

    Attributes:
        url: Such as ``s3://bucket/prefix``.
        profile: The client library's profile with the credentials; ``""`` for its default.
        endpoint: URL of the service, for S3 that is not Amazon's; ``""`` for the default.
    """

    url: str
    profile: str = ""
    endpoint: str = ""

    @property
    def protocol(self) -> str:
        """Such as ``s3``."""
        return self.url.partition("://")[0]


def open_filesystem(address: Address) -> tuple[AbstractFileSystem, str]:
    """Return the file system and the path in it that an address names; nothing is connected to yet.

    Raises:
        ConfigError: The URL is of an unknown kind.
        MissingExtraError: The client library is not installed.
        StoreError: The client library refuses profile or endpoint.
    """
    import fsspec  # noqa: PLC0415  only runs with a remote store need it

    problem = find_problem(address.url)
    if problem:
        raise ConfigError(f"store={redaction.redact_text(address.url)} {problem}")
    try:
        with explain_errors(address.url):
            filesystem, path = fsspec.core.url_to_fs(address.url, **_make_options(address))
    except ImportError as error:
        library, extra = _EXTRAS.get(address.protocol, ("", ""))
        if extra:
            raise MissingExtraError(f"{library} (for {address.protocol}://)", extra) from error
        raise StoreError(f"{address.url}: {error}") from error
    return filesystem, str(path).rstrip("/")


def probe_store(address: Address) -> None:
    """Write a small file into a store, read it back and delete it.

    Raises:
        PrecflowError: One of them failed.
    """
    filesystem, root = open_filesystem(address)
    path = f"{root}/.precflow-probe-{uuid.uuid4().hex}"
    with explain_errors(address.url):
        try:
            if address.protocol not in S3:  # an object store has no folders
                filesystem.makedirs(root, exist_ok=True)
            filesystem.pipe_file(path, b"probe")
            found = filesystem.cat_file(path)
            filesystem.rm_file(path)
        except FileNotFoundError as error:
            raise StoreError(f"{address.url} does not exist", next_step="make it, or name another store=") from error
    if found != b"probe":
        raise StoreError(f"{address.url} gives back other bytes than were written")


def _make_options(address: Address) -> dict[str, Any]:
    if address.protocol not in S3:
        return {}
    options: dict[str, Any] = {
        "use_listings_cache": False,  # what another machine uploads has to be seen
        # Some services that speak S3 know no checksums beyond MD5, which we compare ourselves.
        "config_kwargs": {
            "connect_timeout": _CONNECT_SECONDS,
            "read_timeout": _READ_SECONDS,
            "retries": {"max_attempts": _ATTEMPTS},
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
        },
    }
    options |= {"profile": address.profile} if address.profile else {}
    options |= {"endpoint_url": address.endpoint} if address.endpoint else {}
    return options


@contextlib.contextmanager
def explain_errors(url: str) -> Iterator[None]:
    """Turn whatever a client library raises into :class:`StoreError`; ``FileNotFoundError`` and ours pass.

    Raises:
        StoreError: The store refuses, does not answer, is full, or fails in another way.
    """
    try:
        yield
    except (PrecflowError, FileNotFoundError, ImportError):
        raise
    except Exception as error:  # each client library has a tree of errors of its own
        raise describe_error(url, error) from error


def describe_error(url: str, error: Exception) -> StoreError:
    """Return our error for one of a client library's."""
    text = redaction.redact_text(" ".join(str(error).split()))[:300]
    said = f"{type(error).__name__}: {text}".rstrip(": ")
    signs = f"{type(error).__name__} {text}".lower()
    kept = "what is finished stays on this machine, and the same command uploads it"
    is_full = isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}
    if is_full or any(sign in signs for sign in _FULL):
        return StoreError(f"{url} is full: {said}", next_step=f"precflow prune {url} --older 30d   makes room; {kept}")
    if "nocredentials" in signs or "credentials" in signs or "profile" in signs:
        return StoreError(
            f"{url}: no usable credentials: {said}",
            next_step=f"set site.store_profile to a profile of your AWS configuration, or the AWS_* variables; {kept}",
        )
    if isinstance(error, PermissionError) or any(sign in signs for sign in _REFUSED):
        return StoreError(
            f"{url} refuses: {said}",
            next_step=f"ask for the right to list, read and write there, or try another profile (site.store_profile); {kept}",
        )
    if isinstance(error, TimeoutError) or any(sign in signs for sign in _SILENT):
        return StoreError(
            f"{url} does not answer: {said}", next_step=f"is site.store_endpoint right, and the network up? {kept}"
        )
    return StoreError(f"{url} failed: {said}", next_step=kept)
