"""Renders templates: Dockerfiles, and pages; the only importer of Jinja."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jinja2

from sparkdeploy.errors import BuildError

if TYPE_CHECKING:
    from pathlib import Path


def render(folder: Path, template: str, **values: object) -> str:
    """Fill in a template of `folder`; a name without a value raises BuildError."""
    environment = jinja2.Environment(  # noqa: S701 - Dockerfiles, not HTML
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    try:
        return environment.get_template(template).render(**values)
    except jinja2.TemplateNotFound as error:
        raise BuildError(
            f"{folder / template} is missing",
            hint="reinstall sparkdeploy, or unset SPARKDEPLOY_RESOURCES",
        ) from error
    except jinja2.TemplateError as error:
        raise BuildError(f"{folder / template} cannot be rendered: {error}") from error


def render_page(folder: Path, template: str, **values: object) -> str:
    """Fill in an HTML template of our own; every value is escaped unless the template says safe."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template).render(**values)
