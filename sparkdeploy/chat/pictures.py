"""Pictures as a chat message carries them."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from sparkdeploy.errors import UsageError
from sparkdeploy.stored_json import read_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MAX_PICTURE_BYTES = 32 << 20
_KINDS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"BM", "image/bmp"),
)


def picture_url(path: Path) -> str:
    """Return a picture as a data: URL; UsageError for what cannot be read or is none."""
    try:
        content = read_bytes(path.expanduser(), MAX_PICTURE_BYTES)
    except OSError as error:
        raise UsageError(f"the picture {path} cannot be read: {error.strerror}") from error
    kind = _kind(content)
    if kind is None:
        raise UsageError(
            f"{path} is no picture that models take", hint="PNG, JPEG, WebP, GIF or BMP"
        )
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _kind(content: bytes) -> str | None:
    # What is in a file counts, not what it is called.
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in _KINDS if content.startswith(start)), None)


def user_message(text: str, picture_urls: Sequence[str]) -> dict[str, Any]:
    """Return what a person says; plain text where there is no picture, for any template."""
    if not picture_urls:
        return {"role": "user", "content": text}
    pictures = [{"type": "image_url", "image_url": {"url": url}} for url in picture_urls]
    return {"role": "user", "content": [*pictures, {"type": "text", "text": text}]}
