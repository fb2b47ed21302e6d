"""How many examples a property takes."""

from __future__ import annotations

from hypothesis import settings

DEFAULT_EXAMPLES = 30
THOROUGH_EXAMPLES = 2500
QUICK_PART = 10


def examples(count: int) -> int:
    """The count itself in the default run; a tenth of it if quick, never less than if thorough.

    It is asked while test modules are imported: pytest has loaded the profile by then.
    """
    match settings.get_current_profile_name():
        case "quick":
            return max(count // QUICK_PART, 1)
        case "thorough":
            return max(count, THOROUGH_EXAMPLES)
    return count
