"""Keys and tokens that somebody left in a recipe: known by their names, or by how they look."""

from __future__ import annotations

import re

from sparkdeploy.secret_shapes import text_without_secrets

HIDDEN = "***"
_NAME = re.compile(r"(API_?KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)
_BEHIND_A_NAME = re.compile(
    r"((?:api[_-]?key|token|secret|passw(?:or)?d|bearer|authorization)"
    r"['\"]?\s{0,8}[=: ]\s{0,8}['\"]?)"
    r"(?!Bearer\b)[^\s'\"]+",
    re.IGNORECASE,
)
_BY_LOOKS = re.compile(r"\b(?:hf_|sk-|ghp_|github_pat_|nvapi-)[A-Za-z0-9_-]{3,}")


def is_secret(name: str) -> bool:
    """Say whether a variable or a parameter holds a key, a token or a password, by its name."""
    return _NAME.search(name.replace("-", "_")) is not None


def masked(words: str) -> str:
    """Return words without what looks like a key or a token in them."""
    words = text_without_secrets(words, mark=HIDDEN)
    return _BY_LOOKS.sub(HIDDEN, _BEHIND_A_NAME.sub(rf"\g<1>{HIDDEN}", words))
