"""`image`: engines' wheels, and the images that were built from them."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sparkdeploy.cli import options
from sparkdeploy.cli.names import completing, engines, images
from sparkdeploy.cli.options import answer
from sparkdeploy.terminal.console import console
from sparkdeploy.terminal.tables import Fill, TextColumn, TextTable, row_of
from sparkdeploy.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkdeploy.upkeep.images import ImageRow

group = typer.Typer(help="Engines and their images.", no_args_is_help=True, rich_markup_mode=None)

ImageArgument = Annotated[
    str,
    typer.Argument(
        help="A tag, the start of an id or fingerprint, or an engine for its newest.",
        autocompletion=completing(images),
    ),
]


@group.command()
def build(
    name: Annotated[
        str,
        typer.Argument(
            help="A recipe's name or file, or an engine's name.", autocompletion=completing(engines)
        ),
    ],
    platform: Annotated[
        Literal["linux/arm64", "linux/amd64"] | None,
        typer.Option(help="For which machines; a Spark is linux/arm64. Docker's own if left out."),
    ] = None,
    assignments: options.SetOption = None,
    known_bad: options.KnownBadOption = False,
    unsafe: options.UnsafeOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Build all images of an engine or a recipe. It needs no model and no GPU."""
    from sparkdeploy.upkeep.image_build import build_engine

    values = options.overrides(assignments, known_bad=known_bad, unsafe=unsafe)
    images = build_engine(name, values, platform, options.current_settings())
    rows = (
        row_of(
            image.tag,
            image.platform,
            format_bytes(image.size_bytes),
            "built" if image.was_built else "unchanged",
            image.fingerprint,
        )
        for image in images
    )
    columns = (TextColumn(), TextColumn(), TextColumn("", Fill.FIGURE), TextColumn(), TextColumn())
    answer([TextTable(columns, tuple(rows))], [asdict(it) for it in images], as_json=as_json)
    if platform is not None:
        tags = shlex.join(image.tag for image in images)
        console.info(f"to take it along: docker save -o FILE {tags}, and there docker load -i FILE")


@group.command("ls")
def list_images(as_json: options.JsonOption = False) -> None:
    """List sparkdeploy's images on this machine."""
    from sparkdeploy.upkeep.images import list_images

    rows = list_images(options.current_settings())
    if not rows and not as_json:
        console.info("no images of sparkdeploy's are here; `sparkdeploy up` builds what it needs")
    answer([_image_table(rows)], [asdict(row) for row in rows], as_json=as_json)


def _image_table(images: Sequence[ImageRow]) -> TextTable:
    titles = ("tag", "engine", "stage", "platform")
    columns = (
        *map(TextColumn, titles),
        TextColumn("size", Fill.FIGURE),
        TextColumn("used by", Fill.WORDS),
    )
    rows = (
        row_of(
            *(row.tag, row.engine, row.stage, row.platform),
            format_bytes(row.size_bytes),
            ", ".join(dict.fromkeys(row.deployments)),
        )
        for row in images
    )
    return TextTable(columns, tuple(rows))


@group.command("show")
def show_image(image: ImageArgument, as_json: options.JsonOption = False) -> None:
    """Show an image's versions, kernels, self-check and inputs."""
    from sparkdeploy.upkeep.images import show_image

    facts = show_image(image, options.current_settings())
    if as_json:
        console.answer_json(facts)
        return
    for name, value in facts.items():
        if isinstance(value, dict):
            console.answer(f"{name}:")
            for key, inner in value.items():
                console.answer(f"  {key}: {inner}")
        else:
            console.answer(f"{name}: {', '.join(value) if isinstance(value, list) else value}")


@group.command("rm")
def remove_images(
    images: Annotated[
        list[str],
        typer.Argument(
            help="Tags, ids, fingerprints or engines.", autocompletion=completing(images)
        ),
    ],
) -> None:
    """Remove images that sparkdeploy made, and no others."""
    from sparkdeploy.upkeep.images import remove_images

    for tag in remove_images(images, options.current_settings()):
        console.answer(f"removed {tag}")
