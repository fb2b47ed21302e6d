"""Renders templates: Dockerfiles, and pages; the only importer of Jinja."""

import functools
from pathlib import Path

import jinja2

from sparkdeploy.errors import BuildError
from sparkdeploy.terminal.safe_text import visible


def render(folder: Path, template: str, **values: object) -> str:
    """Fill in a template of `folder`; a name without a value raises BuildError."""
    try:
        return _environment(folder, is_html=False).get_template(template).render(**values)
    except jinja2.TemplateNotFound as error:
        raise BuildError(
            f"{folder / template} is missing",
            hint="reinstall sparkdeploy, or unset SPARKDEPLOY_RESOURCES",
        ) from error
    except jinja2.TemplateError as error:
        raise BuildError(f"{folder / template} cannot be rendered: {error}") from error


def render_page(folder: Path, template: str, **values: object) -> str:
    """Fill in an HTML template of our own; every value is escaped unless the template says safe.

    A page is also looked at in a terminal and sent on: control characters are written out.
    """
    return visible(_environment(folder, is_html=True).get_template(template).render(**values))


@functools.cache
def _environment(folder: Path, *, is_html: bool) -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=is_html,  # noqa: S701 - a Dockerfile is no HTML
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
