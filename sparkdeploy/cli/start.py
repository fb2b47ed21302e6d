"""The program's entry: a shell that completes a name is answered before anything is loaded."""

from __future__ import annotations

import sys

COMPLETE = "__complete"
"""Only shells say it (the scripts beside completion/answer.py)."""


def main() -> None:
    if sys.argv[1:2] == [COMPLETE]:
        _complete(sys.argv[2:])
    else:
        from sparkdeploy.cli.main import main as run

        run()


def _complete(arguments: list[str]) -> None:
    """Print candidates; nothing where that fails, for a person is in the middle of a line."""
    from sparkdeploy.cli.completion.answer import answer

    try:
        lines = list(answer(arguments))
    except Exception:  # noqa: BLE001 - as above
        return
    # A name may hold bytes that are no text.
    text = "".join(f"{line}\n" for line in lines)
    sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
