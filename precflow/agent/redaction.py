"""Keeping secrets out of everything that is written or printed.

A secret is recognized by the name in front of it (``HF_TOKEN=...``), by its shape (a key that looks random), or because
:func:`learn` has seen it before.

Judge and agent both use this file: Python 3.8, standard library, no torch. What is hidden, what is not, and why:
``docs/secrets.md``.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from typing import Any, Dict, FrozenSet, Iterable, Iterator, List, Mapping, Set, Tuple

REDACTED = "(redacted)"
VARIABLE = "PRECFLOW_SECRETS"  # environment variable with the secrets that the judge left out of a request: {dotted key: value}

_WORDS = frozenset(  # a NAME_LIKE_THIS with one of these parts has a secret as its value
    "AK SK PAT PIN PWD PASS PASSWD PASSWORD PASSWORDS PASSPHRASE PASSCODE CRED CREDS CREDENTIAL CREDENTIALS SECRET SECRETS "
    "TOKEN TOKENS KEY KEYS APIKEY AUTH AUTHORIZATION BEARER COOKIE COOKIES SAS SIGNATURE JWT OTP".split()
)
_INSIDE = re.compile("SECRET|PASSW|PASSPH|CREDENTIAL|TOKEN(?!IZ)|APIKEY")  # for names without underscores, such as MYTOKEN
_ARGUMENT = re.compile(  # names_like_this: models have a pad_token and a key_dim, so only names that cannot mean anything else
    r"(?:.*_)?(?:password|passwd|passphrase|pwd|secrets?|credentials?|apikey|authorization|(?:api|access|secret|private|account)_key"
    r"(?:_id)?|(?:auth|access|api|hf|hub|bearer|refresh|security|session|github|gitlab)_tokens?)|ak|sk|token|x_amz_.*|x_obs_.*"
)
_IN_QUERY = re.compile(
    r"(?:x-(?:amz|obs|oss|goog|ms)-.*|sig|signature|.*accesskeyid|.*token|.*secret|.*key|code|password|pwd)", re.IGNORECASE
)
_PLAIN = re.compile(r"[+-]?\d{0,3}(?:\.\d+)?|true|false|none|null|on|off|yes|no", re.IGNORECASE)  # never a secret
_KEY_BLOCK = re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY.*?(?:-----END [A-Z0-9 ]*-----|\Z)", re.DOTALL)
_USER = re.compile(r"(?<=://)[^\s/?#@\"'<>]*:(?!\d+[/?#])[^\s\"'<>]*@|(?<=://)[^\s/?#@:\"'<>]{20,}@")
_PAIR = re.compile(  # name=value, "name": "value", ?name=value
    r"([?&;])?(?<![\w.-])-{0,2}([A-Za-z][\w.-]*)([\"']?)(=|%3[Dd]|[ \t]*:[ \t]*(?=[^/\s]))"
    r"(\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'|[^\s&;,\"'<>)\]}\\]+)"
)
_OPTION = re.compile(r"(--?)([A-Za-z][\w-]*)(\s+)([^\s\"'-][^\s\"']*)")
_HEADER = re.compile(r"\b((?:bearer|authorization:\s*\w+)\s+)([A-Za-z0-9._~+/=-]{8,})", re.IGNORECASE)
# Access keys of clouds (AWS, Google, Alibaba), tokens of GitHub, GitLab, Hugging Face, Slack, npm and model services, and JSON
# web tokens: each kind begins with letters of its own.
_TOKENS = re.compile(
    r"(?<![A-Za-z0-9])(?:(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[\w-]{35}|gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|hf_[A-Za-z0-9]{20,}"
    r"|xox[abps]-[\w-]{10,}|sk-[\w-]{20,}|npm_[A-Za-z0-9]{30,}|LTAI[A-Za-z0-9]{12,20}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
    r"(?![A-Za-z0-9])"
)
_ACCESS_KEY = re.compile(r"(?<![A-Za-z0-9_./-])(?=(?:[A-Z]*\d){3})(?=(?:\d*[A-Z]){6})[A-Z0-9]{20}(?![A-Za-z0-9_./-])")
_LONG = re.compile(r"(?<![\w+/=.-])[A-Za-z0-9+/_-]{32,}={0,2}(?![\w+/.])")
_RUN = re.compile(r"[a-z]+|[A-Z]+|[0-9]+")
_SHORTEST = 6  # a learnt secret must have so many letters: a shorter one would also match parts of ordinary words

_known: Set[str] = set()  # secrets that this process has learnt


@functools.lru_cache(maxsize=4096)  # sources and logs have the same few names in every line
def is_secret(name: str) -> bool:
    """Tell from a name whether its value is a secret: a variable, an argument, or the last part of a dotted key.

    >>> [is_secret(name) for name in ("HCCL_PWD", "ASCEND_AK", "target.variables.API_PASSWORD", "apiKey", "hf_token")]
    [True, True, True, True, True]
    >>> [is_secret(name) for name in ("TOKENIZERS_PARALLELISM", "pad_token", "token_ids", "key_dim", "OMP_NUM_THREADS")]
    [False, False, False, False, False]
    """
    last = name.rpartition(".")[2].replace("-", "_")
    if last == VARIABLE:
        return False
    if last.isupper():
        return not _WORDS.isdisjoint(last.split("_")) or bool(_INSIDE.search(last.replace("_", "")))
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", last).lower()
    return bool(_ARGUMENT.fullmatch(snake))


def redact_text(text: str) -> str:
    """Return a text with its secrets replaced by ``(redacted)``; everything else is unchanged.

    >>> redact_text("cannot reach https://ann:pa55w0rd@models.example/a?X-Amz-Signature=0a1b2c&part=2")
    'cannot reach https://(redacted)@models.example/a?X-Amz-Signature=(redacted)&part=2'
    """
    return _hide(text, [])


def redact(value: Any, *, name: str = "") -> Any:
    """Return plain data with its secrets replaced: values of secret names, and secrets inside any text.

    A text that is hidden only because it looks random may still matter for a result, such as the id of a checkpoint. It is
    replaced by a checksum, so that two different ids still differ; 32 random letters cannot be guessed from their checksum.

    >>> redact({"api_key": "abcdef", "layers": 2, "urls": ["s3://AK1:SK2@bucket/x"], "pad_token": "<pad>"})
    {'api_key': '(redacted)', 'layers': 2, 'urls': ['s3://(redacted)@bucket/x'], 'pad_token': '<pad>'}
    """
    if isinstance(value, str):
        if name and _is_secret_value(name, value):
            return REDACTED
        return _LONG.sub(_to_checksum, _hide(value, [], random=False))
    if isinstance(value, Mapping):
        return {key: redact(inner, name=str(key)) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact(inner, name=name) for inner in value]
    return value


def redact_word(typed: str) -> str:
    """Return one word of a command line without its secret: ``key=value`` keeps its key.

    >>> redact_word("target.variables.API_PASSWORD=hunter 2"), redact_word("target.dtype=float16")
    ('target.variables.API_PASSWORD=(redacted)', 'target.dtype=float16')
    """
    key, equals, value = typed.partition("=")
    return f"{key}={REDACTED}" if equals and _is_secret_value(key.lstrip("+~-"), value) else redact_text(typed)


def learn(value: Any, *, name: str = "") -> None:
    """Remember the secrets in plain data or environment variables: from now on they are hidden in every text."""
    if isinstance(value, str):
        secrets: List[str] = [value] if name and _is_secret_value(name, value) else []
        _hide(value, secrets)
        _known.update(secret for secret in map(_strip_quotes, secrets) if _is_worth_hiding(secret))
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            learn(inner, name=str(key))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            learn(inner, name=name)


def learnt() -> FrozenSet[str]:
    """Return the secrets that this process has learnt: a text in which they are hidden is as good until there are others."""
    return frozenset(_known)


def take_out(value: Any, place: str = "") -> Tuple[Any, Dict[str, str]]:
    """Return plain data without its secrets, and the original texts by dotted path, for :func:`put_back`."""
    texts = ((path, name, leaf) for path, name, leaf in _walk_leaves(value, place, "") if isinstance(leaf, str))
    return redact(value), {path: leaf for path, name, leaf in texts if redact(leaf, name=name) != leaf}


def put_back(value: Any, secrets: Mapping[str, str], place: str = "") -> Any:
    """Return plain data with the texts that :func:`take_out` removed put back in their places."""
    if isinstance(value, dict):
        return {key: put_back(inner, secrets, _join_path(place, key)) for key, inner in value.items()}
    if isinstance(value, list):
        return [put_back(inner, secrets, _join_path(place, number)) for number, inner in enumerate(value)]
    return secrets.get(place, value)


def read_handed_over(variables: Mapping[str, str]) -> Dict[str, str]:
    """Return the secrets that the judge passed in the environment, by dotted path; empty if there are none."""
    try:
        secrets = json.loads(variables.get(VARIABLE, "{}"))
    except ValueError:
        return {}
    return {str(key): str(secret) for key, secret in secrets.items()} if isinstance(secrets, dict) else {}


def find_placeholders(value: Any, place: str = "") -> Iterator[str]:
    """Yield the dotted paths of texts in which a secret has been replaced by a placeholder."""
    return (path for path, _, leaf in _walk_leaves(value, place, "") if isinstance(leaf, str) and REDACTED[:-1] in leaf)


def _hide(text: str, secrets: List[str], *, random: bool = True) -> str:
    """Return a text without its secrets, and append those to ``secrets``; ``random=False`` keeps what only looks random."""
    if len(text) < _SHORTEST - 2:
        return text
    # This runs over every line of a log, so each search is skipped if the text lacks a character that a match needs.

    def hide(match: Any, group: int = 0) -> str:
        """Replace one group of a match, but keep quotes around it."""
        secrets.append(match.group(group))
        quoted = match.group(group) != _strip_quotes(match.group(group))
        start, end = match.start(group) - match.start() + quoted, match.end(group) - match.start() - quoted
        return str(match.group()[:start]) + REDACTED + str(match.group()[end:])

    # Longest first: if one secret is part of another, replacing the short one first would leave the rest of the long one.
    for secret in sorted(_known, key=len, reverse=True):
        if secret in text:
            # A secret of letters only may be an ordinary word, so it must not match inside a longer one.
            edges = r"(?<!\w)%s(?!\w)" if secret.isalpha() else "%s"
            text = re.sub(edges % re.escape(secret), REDACTED, text)
    if "://" in text:
        text = _USER.sub(lambda match: _hide_user(match, secrets), text)
    if "-----BEGIN" in text:
        text = _KEY_BLOCK.sub(hide, text)
    if " " in text:
        text = _HEADER.sub(lambda match: hide(match, 2) if re.search(r"\d|\w{20}", match.group(2)) else match.group(), text)
        text = _OPTION.sub(lambda match: hide(match, 4) if is_secret(match.group(2).lower()) else match.group(), text)
    if "=" in text or ":" in text or "%3" in text:
        text = _PAIR.sub(lambda match: hide(match, 5) if _is_pair(match) else match.group(), text)
    text = _TOKENS.sub(hide, text)
    if text.islower():  # the two searches below need capital letters
        return text
    text = _ACCESS_KEY.sub(hide, text)
    return _LONG.sub(lambda match: hide(match) if _is_random(match.group()) else match.group(), text) if random else text


def _is_secret_value(name: str, value: str) -> bool:
    """Tell whether a value is a secret because of its name; small numbers, switches and placeholders never are."""
    if not is_secret(name) or _PLAIN.fullmatch(value) or value.startswith(REDACTED[:-1]):
        return False
    return name.rpartition(".")[2] != "token" or len(value) >= 16  # a short "token" is a piece of text, as in token="<pad>"


def _is_pair(match: Any) -> bool:
    """Tell whether a match of ``name=value``, or of ``name: value`` in JSON or YAML, contains a secret."""
    query, name, quote, sign, value = match.groups()
    if not (is_secret(name) or query):
        return False
    bare = _strip_quotes(value)
    if (
        sign.strip() == ":"
        and not quote
        and not re.match(r"(?:^|.*[\n{,])[ \t-]*$", match.string[: match.start(2)][-80:], re.DOTALL)
    ):
        return False  # prose such as "wrong password: try again"; in YAML or JSON the name begins a line or follows "{" or ","
    return _is_secret_value(name, bare) or (
        bool(query and query in "?&") and bool(_IN_QUERY.fullmatch(name)) and not bare.startswith(REDACTED[:-1])
    )


def _hide_user(match: Any, secrets: List[str]) -> str:
    """Replace ``user:password@`` of a URL; a user name of 16 letters or more may be a token, so it is noted too."""
    user, _, secret = match.group()[:-1].partition(":")
    if match.group().startswith(REDACTED[:-1]):
        return str(match.group())
    secrets.extend(part for part in (secret, user if len(user) >= 16 else "") if part)
    return REDACTED + "@"


def _to_checksum(match: Any) -> str:
    secret = match.group()
    if not _is_random(secret):
        return str(secret)
    return "%s %s)" % (REDACTED[:-1], hashlib.blake2b(secret.encode(), digest_size=8).hexdigest())


def _is_random(token: str) -> bool:
    """Tell whether a token looks random: lower case, capitals and digits mixed in short runs, unlike names, paths and hex.

    >>> _is_random("kD93hfXq7Lz0Pw2VbN8sTy4RmG6cJe1a"), _is_random("9f86d081884c7d659a2feaa0c55ad015" * 2)
    (True, False)
    """
    runs = _RUN.findall(token)
    letters = sum(map(len, runs))
    kinds = {"a" if run[0].islower() else "A" if run[0].isupper() else "0" for run in runs}
    marks = len(token.rstrip("=")) - letters
    return len(kinds) == 3 and len(runs) > 0.42 * letters and max(map(len, runs)) < 8 and marks <= letters / 10


def _strip_quotes(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'" else value


def _is_worth_hiding(secret: str) -> bool:
    """Tell whether a secret may be searched for in all texts; short ones and existing paths occur in too many of them."""
    if len(secret) < _SHORTEST or REDACTED[:-1] in secret or (secret.isdigit() and len(secret) < 8):
        return False
    return not (secret[0] in "/~." and os.path.exists(os.path.expanduser(secret)))


def _walk_leaves(value: Any, place: str, name: str) -> Iterator[Tuple[str, str, Any]]:
    """Yield ``(dotted path, name, leaf)`` for every leaf; the name is that of the innermost key above it."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _walk_leaves(inner, _join_path(place, key), str(key))
    elif isinstance(value, (list, tuple)):
        for number, inner in enumerate(value):
            yield from _walk_leaves(inner, _join_path(place, number), name)
    else:
        yield place, name, value


def _join_path(place: str, key: object) -> str:
    return "%s.%s" % (place, key) if place else str(key)


def forget(secrets: Iterable[str] = ()) -> None:
    """Forget all learnt secrets, or those given: for tests, which share one process."""
    _known.difference_update(list(secrets) or list(_known))
