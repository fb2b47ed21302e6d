"""`config`: every setting, its value and where it was set."""

from __future__ import annotations

from sparkdeploy.cli.options import JsonOption
from sparkdeploy.console import console


def config(as_json: JsonOption = False) -> None:
    """Show every setting with its value and whether it comes from the environment or a file."""
    from sparkdeploy.settings import describe, load_settings

    rows = describe(load_settings())
    if as_json:
        console.answer_json({name: {"value": it, "source": source} for name, it, source in rows})
        return
    for name, value, source in rows:
        console.answer(f"{name:<20} {value or '-':<56} {source}")
