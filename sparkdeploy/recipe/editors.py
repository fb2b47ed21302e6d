"""What a file says to an editor in its first line: where the JSON schema of its format lies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from sparkdeploy.folders import resources

if TYPE_CHECKING:
    from pathlib import Path

Format = Literal["recipe", "engine", "config"]
FOLDER = "schema"
"""Beside the recipes that are shipped, in the checkout as in the wheel."""


def schema_file(kind: Format) -> Path:
    return resources() / "recipes" / FOLDER / f"{kind}.schema.json"


def schema_line(kind: Format) -> str:
    """Return the comment for a file of the user's, which may lie anywhere: no path is relative."""
    # As a URL: a path may have spaces, which would end it.
    place = schema_file(kind).absolute().as_uri()
    return f"# yaml-language-server: $schema={place}"
