"""How secrets look in text: the one list for evidence, reports, imported recipes and records.

Every run in a pattern has a bound or ends its pattern, so that the time is linear in the text.
"""

import os
import re
from collections.abc import Iterable, Mapping

REMOVED = "(removed)"
SHORTEST_KNOWN = 8
"""A shorter value may stand anywhere by chance."""
_NAME = r"""(?:
    (?:api|access|private|account|signing|subscription)[_-]?key
    | secret[\w-]{0,40} | passw(?:or)?d | passphrase | credentials?
    | (?:access|refresh|session|auth|bearer|id)token
    | (?<![A-Za-z0-9])(?<!bos_)(?<!eos_)(?<!pad_)(?<!unk_)(?<!mask_)token
)"""
_VALUE = r"""(?!None\b|null\b|true\b|false\b|\(removed\)|\*\*\*)[^\s"',}\]&;]{6,}"""
_SHAPES = (
    re.compile(r"(-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----)(?:[^-]|-(?!----)){1,16000}"),
    re.compile(r"(?i)((?<![\w-])(?:set-)?cookie[\"']?\s{0,8}:\s{0,8}[\"']?)[^\r\n\"'}]{6,}"),
    re.compile(
        r"(?i)(\bauthorization[\"']?\s{0,8}[:=]\s{0,8}[\"']?"
        r"(?:(?:basic|bearer|digest|token|negotiate)\s{1,8})?)"
        r"(?!basic\b|bearer\b|digest\b|token\b|negotiate\b)[^\s\"',}\]]{6,}"
    ),
    re.compile(r"(?i)(\b(?:bearer|basic)\s{1,8})(?=[\w.~+/=-]{0,40}[\d=_-])[\w.~+/=-]{6,}"),
    re.compile(r"(?<!ssh)(://)(?!git@)[^/\s@\"'<>]{1,512}(?=@)"),
    re.compile(r"(ssh://)[^/\s@:\"'<>]{0,64}:[^/\s@\"'<>]{1,512}(?=@)"),
    re.compile(
        r"(?i)([?&](?:x-amz-signature|x-amz-credential|x-amz-security-token|x-goog-signature"
        r"|sig|signature|key|auth|[\w-]{0,40}token|[\w-]{0,40}api[_-]?key)=)[^\s\"'&#]{1,}"
    ),
    re.compile(
        rf"""(?ix)({_NAME}(?:["']?\s{{0,20}}[:=]\s{{0,20}}\[?\s{{0,4}}["']?
        |["'],\s{{0,4}}\[?["'])){_VALUE}"""
    ),
    re.compile(
        r"(?i)(--[\w-]{0,40}?(?:api[_-]?key|token|password|secret)[\"',]{0,3}\s{1,8}[\"']?)"
        rf"(?!-){_VALUE}"
    ),
    re.compile(r"()(?<![\w-])eyJ[\w-]{8,4000}\.[\w-]{4,4000}\.[\w-]{0,4000}"),
    re.compile(
        r"()(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{12,}|sk-[\w-]{12,}|gh[pousr][_-][\w-]{12,}"
        r"|github_pat_\w{12,}|glpat-[\w-]{12,}|xox[abeprs]-[\w-]{10,}|nvapi-[\w-]{12,}"
        r"|A[KS]IA[A-Z0-9]{16}\b|AIza[\w-]{30,}|npm_[A-Za-z0-9]{20,}|pypi-[\w-]{20,}"
        r"|[rs]k_(?:live|test)_\w{10,}|dop_v1_\w{12,})"
    ),
    # A line of ~/.netrc, and what curl is given; a container's `--user 1000:1000` is no login.
    re.compile(r"(?i)(\blogin\s{1,8}\S{1,128}\s{1,8}password\s{1,8})\S{4,}"),
    re.compile(
        r"((?:^|\s)(?:-u|--user|--proxy-user)[\s=]{1,4}[\"']?[^\s:\"']{1,64}:)(?!\d{1,10}\b)[^\s\"']{4,}"
    ),
)
_LOGIN = re.compile(r"(?<!ssh:)(?<!file:)//\S{0,1024}@|//[^/@\s]{0,256}:\S{0,1024}@")
"""A user alone is no secret where ssh asks for a key."""
_QUERY = re.compile(r"\?\S+")
_SECRET_NAME = re.compile(r"(?i)key|token|secret|passw|passphrase|credential|auth")
_HARMLESS_NAME = re.compile(r"(?i)tokens|tokenizer|key_file|keyword|author")


def text_without_secrets(text: str, known: Iterable[str] = (), *, mark: str = REMOVED) -> str:
    """Return the text with `mark` in place of the known values, and of what looks like a secret."""
    for value in known:
        text = text.replace(value, mark)
    for shape in _SHAPES:
        text = shape.sub(lambda match: f"{match[1]}{mark}", text)
    return text


def masked_address(text: str) -> str:
    """Return an address, or what git said of one, without any login and without its query."""
    return _QUERY.sub("?***", _LOGIN.sub("//***@", text)) if "://" in text else text


def names_a_secret(name: str) -> bool:
    """Say whether a variable or a field holds a key, a token or a password, by its name."""
    return bool(_SECRET_NAME.search(name)) and not _HARMLESS_NAME.search(name)


def environment_secrets(environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the values of variables that are named like secrets; a path is none."""
    items = (os.environ if environment is None else environment).items()
    return tuple(
        value
        for name, value in items
        if names_a_secret(name) and len(value) >= SHORTEST_KNOWN and not value.startswith("/")
    )
