"""`export`: a deployment in the words of other tools."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparkdeploy.cli.names import completing, deployments, recipes
from sparkdeploy.cli.options import (
    HardwareOption,
    KnownBadOption,
    NameOption,
    PortOption,
    PublicOption,
    SetOption,
    UnsafeOption,
    current_settings,
    named_hardware,
    overrides,
    requested,
    stack_file,
)
from sparkdeploy.terminal.console import console

if TYPE_CHECKING:
    from sparkdeploy.deploy.request import Request
    from sparkdeploy.export.compose_file import Export
    from sparkdeploy.settings import Settings

NamesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME",
        help="Deployments; all of yours when left out.",
        autocompletion=completing(deployments),
    ),
]
FolderOption = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="DIR", help="Write all files into it; else the first is printed."
    ),
]
CONSENTS = ("--allow-known-bad", "--allow-unsafe")


def _argument(named: str) -> Any:  # noqa: ANN401 - what Typer makes of an argument
    return typer.Argument(
        metavar="[NAME]",
        help=f"{named}; the configured default when left out.",
        autocompletion=completing(lambda: (*deployments(), *recipes())),
    )


DeployedOrRecipeArgument = Annotated[
    str | None, _argument("A deployment, or a recipe's name or file")
]
OrStackArgument = Annotated[
    str | None, _argument("A deployment, a recipe's name or file, or a stack file")
]
OpenOption = Annotated[bool, typer.Option("--public", help="Listen on every address.")]

group = typer.Typer(
    help="Files for systemd and Compose, and for what runs beside it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def _requested(
    word: str | None, changed: list[str], settings: Settings, *, name: str, public: bool
) -> Request:
    """Return what a recipe's name asks for, or what a deployment of that name was started with."""
    from sparkdeploy.deploy.request import deployed_request
    from sparkdeploy.node.container import is_name
    from sparkdeploy.recipe.library import library

    is_recipe = word is None or not is_name(word) or word in library(settings).recipe_files()
    found = None if is_recipe else deployed_request(str(word), settings)
    if found is None:
        return requested(word, changed, settings, name=name, public=public)
    console.info(f"{word} is a deployment, of recipe {found.recipe}")
    return replace(found, assignments=(*found.assignments, *changed))


@group.command()
def systemd(
    context: typer.Context,
    recipe: OrStackArgument = None,
    assignments: SetOption = None,
    port: PortOption = None,
    name: NameOption = "main",
    public: PublicOption = False,
    on_demand: Annotated[
        bool, typer.Option("--socket", help="Start it when the first client connects.")
    ] = False,
    folder: FolderOption = None,
    known_bad: KnownBadOption = False,
    unsafe: UnsafeOption = False,
) -> None:
    """A unit that starts the deployment at boot, and after it died.

    Of a stack file: one for its gateway.
    """
    from sparkdeploy.export.deployment import export_gateway_unit, export_socket, export_systemd
    from sparkdeploy.export.systemd_unit import gateway_unit_name, unit_name

    settings = current_settings()
    if (path := stack_file(recipe, settings)) is not None:
        from sparkdeploy.cli.stack import refuse_options
        from sparkdeploy.gateway.stack import load_stack

        refuse_options(context, path)
        consents = [it for it, given in zip(CONSENTS, (known_bad, unsafe), strict=True) if given]
        stack = load_stack(path, settings)
        unit = gateway_unit_name(stack.name)
        _hand_over_unit(export_gateway_unit(stack, consents, os.environ), unit, folder)
        return
    changed = overrides(assignments, port, known_bad=known_bad, unsafe=unsafe)
    request = _requested(recipe, changed, settings, name=name, public=public)
    if on_demand:
        _hand_over(export_socket(request, settings, os.environ), folder)
        return
    unit = unit_name(request.deployment.name)
    _hand_over_unit(export_systemd(request, settings, os.environ), unit, folder)


def _hand_over_unit(text: str, unit: str, folder: Path | None) -> None:
    from sparkdeploy.export.compose_file import Export, ExportedFile

    if folder is not None:
        enable = f"sudo systemctl daemon-reload && sudo systemctl enable {unit}"
        step = f"sudo cp {unit} /etc/systemd/system/ && {enable}"
        _hand_over(Export((ExportedFile(unit, text),), next_step=step), folder)
        return
    console.answer_text(text)
    typed = shlex.join(["sparkdeploy", *sys.argv[1:]])
    console.info(f"to use it: {typed} | sudo tee /etc/systemd/system/{unit}")
    console.info(f"           sudo systemctl daemon-reload && sudo systemctl enable {unit}")


@group.command()
def compose(
    recipe: DeployedOrRecipeArgument = None,
    assignments: SetOption = None,
    port: PortOption = None,
    name: NameOption = "main",
    public: PublicOption = False,
    folder: FolderOption = None,
    known_bad: KnownBadOption = False,
    unsafe: UnsafeOption = False,
) -> None:
    """A Compose file of the very container that `up` would start."""
    from sparkdeploy.export.compose_file import Export, ExportedFile
    from sparkdeploy.export.deployment import export_compose

    settings = current_settings()
    changed = overrides(assignments, port, known_bad=known_bad, unsafe=unsafe)
    request = _requested(recipe, changed, settings, name=name, public=public)
    text = export_compose(request, settings)
    if folder is None:
        console.answer_text(text)
        return
    _hand_over(
        Export((ExportedFile("compose.yaml", text),), next_step="docker compose up -d"), folder
    )


@group.command()
def litellm(
    names: NamesArgument = None,
    folder: FolderOption = None,
    port: Annotated[int, typer.Option(min=1, max=65535, metavar="N", help="LiteLLM's.")] = 4000,
    public: OpenOption = False,
) -> None:
    """Several deployments behind one port, by LiteLLM. Its clients need a key."""
    from sparkdeploy.export.neighbours import export_litellm

    _hand_over(export_litellm(names or (), port, current_settings(), is_public=public), folder)


@group.command("llama-swap")
def llama_swap(
    stack: Annotated[Path, typer.Argument(help="A stack file.", show_default=False)],
    folder: FolderOption = None,
    hardware: HardwareOption = None,
    known_bad: KnownBadOption = False,
    unsafe: UnsafeOption = False,
) -> None:
    """llama-swap's configuration of a stack file."""
    from sparkdeploy.export.llama_swap import export_llama_swap
    from sparkdeploy.gateway.plans import plan_stack
    from sparkdeploy.gateway.report import refuse
    from sparkdeploy.gateway.stack import load_stack

    settings = current_settings()
    consents = overrides(None, known_bad=known_bad, unsafe=unsafe)
    plan = plan_stack(load_stack(stack, settings), settings, consents, named_hardware(hardware))
    refuse(plan)
    _hand_over(export_llama_swap(plan, settings, os.environ), folder)


@group.command()
def prometheus(names: NamesArgument = None, folder: FolderOption = None) -> None:
    """What Prometheus scrapes and records. Of deployments, of memory and of the GPU."""
    from sparkdeploy.export.neighbours import export_prometheus

    _hand_over(export_prometheus(names or (), current_settings()), folder)


@group.command()
def grafana(folder: FolderOption = None) -> None:
    """A dashboard for Grafana over what Prometheus records."""
    from sparkdeploy.export.neighbours import export_grafana

    _hand_over(export_grafana(current_settings()), folder)


@group.command("open-webui")
def open_webui(
    names: NamesArgument = None,
    folder: FolderOption = None,
    port: Annotated[int, typer.Option(min=1, max=65535, metavar="N", help="Its own.")] = 3001,
    public: OpenOption = False,
) -> None:
    """A Compose file of Open WebUI in front of deployments."""
    from sparkdeploy.export.neighbours import export_open_webui

    _hand_over(export_open_webui(names or (), port, current_settings(), is_public=public), folder)


def _hand_over(export: Export, folder: Path | None) -> None:
    """Print the first file, or write them all."""
    from sparkdeploy.export.neighbours import write_export

    if folder is None:
        console.answer_text(export.files[0].text)
        if others := ", ".join(file.path for file in export.files[1:]):
            console.info(f"with -o DIR also: {others}")
    else:
        write_export(export, folder)
        for file in export.files:
            console.answer(str(folder / file.path))
        console.info(f"to use it, in {folder}: {export.next_step}")
    for note in export.notes:
        console.info(note)
