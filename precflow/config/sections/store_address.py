"""The URL of a store, as ``store=`` and ``site.store`` may name one: what it may be, without connecting to anything."""

from __future__ import annotations

from urllib.parse import urlsplit


def is_address(text: str) -> bool:
    """Tell whether a store is named by a URL and not by a folder.

    >>> is_address("s3://bucket/prefix"), is_address("/shared/s3")
    (True, False)
    """
    return "://" in text


def find_slip(text: str) -> str:
    """Return what is wrong with a folder that was meant to be a URL, ``""`` for nothing: ``s3:/bucket`` names a folder ``s3:``.

    >>> find_slip("s3:/bucket/x"), find_slip("/shared/s3"), find_slip("C:/stores")
    ('is a folder named `s3:`: a URL has two slashes, s3://bucket/x; ./s3:/bucket/x is the folder', '', '')
    """
    protocol, colon, rest = text.partition(":")
    if not colon or is_address(text) or len(protocol) < 2 or not protocol.isalnum() or not rest.startswith("/"):
        return ""
    return f"is a folder named `{protocol}:`: a URL has two slashes, {protocol}://{rest.strip('/')}; ./{text} is the folder"


def find_problem(url: str) -> str:
    """Return what is wrong with the URL of a store, ``""`` for nothing; nothing is connected to.

    >>> find_problem("s3://bucket/prefix"), find_problem("s3://me:secret@bucket")
    ('', 'has a user or a password in it, which would get into histories: use a profile (site.store_profile)')
    """
    protocol, _, rest = url.partition("://")
    if "@" in urlsplit(url).netloc:
        return "has a user or a password in it, which would get into histories: use a profile (site.store_profile)"
    if not rest.strip("/"):
        return f"names no place: expected {protocol or 's3'}://BUCKET/FOLDER"
    if "?" in rest or "#" in rest:
        return f"expected {protocol}://BUCKET/FOLDER, without ? and #"
    from fsspec.registry import known_implementations  # noqa: PLC0415  runs without such a store do not need it

    if protocol not in known_implementations:
        return f"{protocol}:// is no kind of store that fsspec knows: name s3://BUCKET/FOLDER, or a folder"
    return ""
