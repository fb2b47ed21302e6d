"""The machine's users by name, and which of them this process acts as."""

from __future__ import annotations

import pwd

from sparkdeploy.node.facts import current_uid


def user_name(uid: int) -> str:
    """Return the name of a user, or `uid 1234` when the machine has none for it."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return f"uid {uid}"


def own_name() -> str:
    """Return the name of the user this process acts as."""
    return user_name(current_uid())


def is_another(user: str) -> bool:
    """Say whether a label's user is somebody else; an empty one tells of nobody."""
    return user not in {"", own_name()}
