"""How many examples a property takes."""

from __future__ import annotations

from hypothesis import settings

DEFAULT_EXAMPLES = 30
THOROUGH_EXAMPLES = 2500
QUICK_PART = 10
DEFAULT_PART = 3


def examples(count: int) -> int:
    """A third of it in the default run; a tenth if quick, never less than the rest if thorough.

    It is asked while test modules are imported: pytest has loaded the profile by then.
    """
    match settings.get_current_profile_name():
        case "quick":
            return max(count // QUICK_PART, 1)
        case "thorough":
            return max(count, THOROUGH_EXAMPLES)
    return max(count // DEFAULT_PART, 1)
