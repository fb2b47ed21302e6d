"""`checkpoint`: downloads and prepared checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparkdeploy.cli import options
from sparkdeploy.cli.options import answer
from sparkdeploy.terminal.console import console
from sparkdeploy.terminal.tables import Fill, TextColumn, TextTable, row_of
from sparkdeploy.units import format_bytes

if TYPE_CHECKING:
    from sparkdeploy.checkpoint.store import Stored
    from sparkdeploy.checkpoint.verify import Verified

group = typer.Typer(
    help="Checkpoints: downloads, and what is made of them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
StoredArgument = Annotated[
    str, typer.Argument(help="A folder, or a name that `checkpoint ls` shows.")
]


@group.command()
def pull(
    name: Annotated[str, typer.Argument(help="ORGANISATION/NAME[@REVISION], or a recipe.")],
    update: Annotated[
        bool, typer.Option("--update", help="Take what the branch holds now.")
    ] = False,
    all_files: Annotated[
        bool, typer.Option("--all-files", help="Also fetch what vLLM does not read.")
    ] = False,
    unsafe: options.UnsafeOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Download a model or what a recipe needs; verify every file."""
    from sparkdeploy.upkeep.checkpoints import pull_repositories

    values = options.overrides(None, unsafe=unsafe)
    pulled = pull_repositories(
        name, options.current_settings(), values, anew=update, all_files=all_files
    )
    answer((str(item.path) for item in pulled), [asdict(item) for item in pulled], as_json=as_json)


@group.command("ls")
def list_stored(as_json: options.JsonOption = False) -> None:
    """List downloads and prepared checkpoints."""
    from sparkdeploy.checkpoint.store import stored

    found = tuple(stored(options.current_settings()))
    if not found and not as_json:
        console.info("nothing is stored; `sparkdeploy checkpoint pull RECIPE` downloads a model")
    answer([_stored_table(found)], [asdict(item) for item in found], as_json=as_json)


def _stored_table(found: Sequence[Stored]) -> TextTable:
    columns = (
        TextColumn("kind"),
        TextColumn("size", Fill.FIGURE),
        TextColumn("name"),
        TextColumn("state", Fill.WORDS),
        TextColumn("shared", Fill.FIGURE),
    )
    rows = (
        row_of(
            item.kind,
            format_bytes(item.size_bytes),
            item.name,
            item.state,
            format_bytes(shared) if (shared := item.size_bytes - item.freed_bytes) else "",
        )
        for item in found
    )
    return TextTable(columns, tuple(rows))


@group.command("rm")
def remove(
    name: Annotated[str, typer.Argument(help="A name that `checkpoint ls` shows.")],
    yes: options.YesOption = False,
) -> None:
    """Delete a checkpoint that no deployment runs from."""
    from sparkdeploy.upkeep.checkpoints import remove_stored

    consent = (lambda _question: True) if yes else console.confirm
    item = remove_stored(name, options.current_settings(), consent)
    console.answer(f"deleted {item.path}, {format_bytes(item.freed_bytes)} freed")


@group.command()
def build(
    standalone: Annotated[
        Path, typer.Option("--standalone", help="The folder of the complete checkpoint to write.")
    ],
    recipe: options.RecipeArgument = None,
    assignments: options.SetOption = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace another checkpoint in that folder.")
    ] = False,
) -> None:
    """Write a recipe's model with FP8 layers as a checkpoint."""
    from sparkdeploy.upkeep.checkpoints import write_standalone

    settings = options.current_settings()
    manifest = write_standalone(
        options.requested(recipe, assignments, settings),
        standalone,
        settings,
        overwrite=overwrite,
    )
    fp8, mtp = manifest.fp8_layer_count, manifest.mtp_tensor_count
    console.answer(f"{standalone}: {fp8} FP8 weights, {mtp} MTP tensors")


@group.command()
def verify(
    name: StoredArgument,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every byte of files whose hash is known.")
    ] = False,
    as_json: options.JsonOption = False,
) -> None:
    """Check a checkpoint's index, headers and configuration."""
    from sparkdeploy.checkpoint.store import find_folder
    from sparkdeploy.upkeep.checkpoints import unknown_hashes
    from sparkdeploy.upkeep.checkpoints import verify as verified

    settings = options.current_settings()
    folder = find_folder(name, settings)
    found = verified(folder, settings, deep=deep)
    for warning in found.warnings:
        console.warn(warning)
    if not found.unhashed:
        answer(_verified_lines(found), asdict(found), as_json=as_json)
        return
    if as_json:
        console.answer_json(asdict(found))
    raise unknown_hashes(name, folder, found)


def _verified_lines(found: Verified) -> Iterator[str]:
    yield (
        f"sound: {found.tensors} tensors in {found.files} files, {found.fp8_weights} FP8 weights, "
        f"{found.mtp_tensors} MTP tensors"
    )
    yield from (f"  not known: {what}" for what in found.not_known)
    if found.hashed_files:
        yield f"hashed {found.hashed_files} files, {format_bytes(found.hashed_bytes)}"


@group.command("draft-vocab")
def draft_vocabulary(
    recipe: Annotated[str, typer.Argument(help="A recipe whose model is here.")],
    texts: Annotated[list[Path], typer.Argument(help="Text files, or folders of them.")],
    assignments: options.SetOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Count a model's tokens in text of yours, for a draft head."""
    from sparkdeploy.upkeep.checkpoints import count_for

    settings = options.current_settings()
    found = count_for(options.requested(recipe, assignments, settings), texts, settings)
    line = (
        f"{found.counted:,} tokens counted, {found.distinct:,} different ones of "
        f"{len(found.tokens):,}; the next `up` of a recipe with a draft head uses them"
    )
    answer([line], {"counted": found.counted, "distinct": found.distinct}, as_json=as_json)
