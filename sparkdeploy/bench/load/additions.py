"""What a person adds to each request: sampling, fields of the body, headers."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from sparkdeploy.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_OURS = ("model", "messages", "prompt", "stream", "stream_options", "return_token_ids", "n")
"""Fields that the counting hangs on, or that others say."""
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x21-\x7e](?:[ \t\x20-\x7e]*))")
_KEYS = {"authorization", "proxy-authorization", "x-api-key", "api-key", "cookie"}
_FRAMING = {
    *("host", "connection", "content-length", "content-type", "transfer-encoding"),
    *("accept-encoding", "expect", "upgrade", "te", "trailer"),
}


def body_of(sampling: Mapping[str, float | None], extra: str | None) -> dict[str, Any]:
    """Return the fields to add to each body; UsageError for what cannot be added."""
    body: dict[str, Any] = {name: value for name, value in sampling.items() if value is not None}
    for name, value in _extra_fields(extra).items():
        if name in _OURS:
            raise UsageError(f"--extra-body: {name} is set by the measurement itself")
        if name in body:
            raise UsageError(f"--extra-body: {name} has an option, and both are given")
        body[name] = value
    return body


def _extra_fields(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--extra-body is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise UsageError("--extra-body is no JSON object", hint='such as {"top_k": 20}')
    return content


def headers_of(lines: Sequence[str]) -> dict[str, str]:
    """Read `Name: value` each; UsageError names the header, never its value."""
    headers: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        found = _HEADER.fullmatch(line)
        if found is None:
            raise UsageError(
                f"--header number {number} is no header", hint="such as 'X-Tenant: lab', in ASCII"
            )
        name, value = found[1], found[2].rstrip()
        if name.lower() in _KEYS:
            raise UsageError(
                f"--header {name}: a secret on a command line is read by others",
                hint="a key goes into a file: --key-file FILE",
            )
        if name.lower() in _FRAMING:
            raise UsageError(f"--header {name} is set by the client itself")
        if name.lower() in map(str.lower, headers):
            raise UsageError(f"--header {name} is given twice")
        headers[name] = value
    return headers
