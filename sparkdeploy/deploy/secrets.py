"""Takes secrets out of what is kept or sent: by name, by shape, and by value where it is known."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

REMOVED = "(removed)"
SHORTEST_KNOWN = 8
"""A shorter value may stand anywhere by chance."""
_SECRET_NAME = re.compile(r"(?i)key|token|secret|passw|credential|auth")
_HARMLESS_NAME = re.compile(r"(?i)tokens|tokenizer|key_file|keyword|author")
_SHAPES = (
    re.compile(r"(?i)(\bbearer\s+)[\w.~+/=-]{6,}"),
    re.compile(r"()\b(?:hf|gh[pousr]|glpat|sk|xox[abp])[-_][\w-]{12,}"),
    re.compile(r"()\bAKIA[A-Z0-9]{16}\b"),
    re.compile(r"(://)[^/\s:@]+:[^/\s@]+(?=@)"),
    re.compile(
        r"""(?ix)(["']?\b[\w-]*(?:api[_-]?key|secret|passwo?r?d|passwd|(?<!\w)token|_token)["']?
        \s*[:=]\s*\[?\s*["']?)(?!None\b|null\b|true\b|false\b)[^\s"',}\]]{6,}"""
    ),
)


def known_secrets(folders: Iterable[Path]) -> tuple[str, ...]:
    """Return the values that the files of these folders hold, such as deployments' keys."""
    values = []
    for folder in folders:
        with contextlib.suppress(OSError):
            for path in folder.iterdir():
                with contextlib.suppress(OSError, UnicodeDecodeError):
                    values.append(path.read_text().strip())
    return tuple(value for value in values if len(value) >= SHORTEST_KNOWN)


def text_without_secrets(text: str, known: Iterable[str] = ()) -> str:
    """Return a text with secret-looking values and all `known` ones replaced."""
    for value in known:
        text = text.replace(value, REMOVED)
    for shape in _SHAPES:
        text = shape.sub(rf"\g<1>{REMOVED}", text)
    return text


def value_without_secrets(value: Any, known: Iterable[str] = ()) -> Any:  # noqa: ANN401 - any JSON
    """Return a JSON value in which what a secret-sounding key names is replaced, and every text."""
    if isinstance(value, dict):
        return {
            name: REMOVED
            if isinstance(item, str) and _names_a_secret(str(name))
            else value_without_secrets(item, known)
            for name, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [value_without_secrets(item, known) for item in value]
    return text_without_secrets(value, known) if isinstance(value, str) else value


def record_without_secrets(record: Mapping[str, Any], known: Iterable[str] = ()) -> dict[str, Any]:
    """Return Docker's record of a container with secret-looking variables emptied."""
    config = dict(record.get("Config") or {})
    config["Env"] = [_redacted(pair) for pair in config.get("Env") or ()]
    cleaned: dict[str, Any] = value_without_secrets({**record, "Config": config}, known)
    return cleaned


def _names_a_secret(name: str) -> bool:
    return bool(_SECRET_NAME.search(name)) and not _HARMLESS_NAME.search(name)


def _redacted(pair: str) -> str:
    name, separator, _ = pair.partition("=")
    return f"{name}{separator}{REMOVED}" if _names_a_secret(name) else pair
