"""Options that several commands share."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperCommand

from sparkdeploy.cli.names import completing, deployments, recipes
from sparkdeploy.errors import UsageError
from sparkdeploy.terminal.console import console

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from sparkdeploy.deploy.request import Request
    from sparkdeploy.estimate.hardware import Hardware
    from sparkdeploy.plan.steps import Plan
    from sparkdeploy.settings import Settings
    from sparkdeploy.terminal.tables import Block


def current_settings() -> Settings:
    """Read the configuration; not at the top of a module: pydantic takes longer than `--help`."""
    from sparkdeploy.settings import load_settings

    return load_settings()


FitsOption = Annotated[
    str | None,
    typer.Option(
        "--fits",
        metavar="HARDWARE",
        help="Which fit: spark, h100, h200; without a value, this machine.",
    ),
]


HardwareOption = Annotated[
    str | None,
    typer.Option(
        "--hardware",
        metavar="HARDWARE",
        help="Say what fits and how fast it is on: spark, h100, h200, here.",
    ),
]


class FitsHereByDefault(TyperCommand):
    def parse_args(self, ctx, args: list[str]) -> list[str]:  # type: ignore[no-untyped-def]  # noqa: ANN001 - typer's own
        words = []
        for word, follower in itertools.pairwise([*args, "-"]):
            has_value = word != "--fits" or not follower.startswith("-")
            words.append(word if has_value else "--fits=here")
        return super().parse_args(ctx, words)


def _ask_no_hub(is_offline: bool) -> bool:
    """As the hub's own tools are told."""
    if is_offline:
        os.environ["HF_HUB_OFFLINE"] = "1"
    return is_offline


OfflineOption = Annotated[
    bool,
    typer.Option("--offline", callback=_ask_no_hub, help="Ask no hub, as HF_HUB_OFFLINE=1 says."),
]
RecipeArgument = Annotated[
    str | None,
    typer.Argument(
        help="A recipe's name or file; the configured default when left out.",
        autocompletion=completing(recipes),
    ),
]
RecipeOrStackArgument = Annotated[
    str | None,
    typer.Argument(
        help="A recipe's name or file, or a stack file; the configured default when left out.",
        autocompletion=completing(recipes),
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Override one value of the recipe; may be given several times. A list: "
        "'model.served_name=[a, b]'.",
    ),
]
PortOption = Annotated[
    int | None,
    typer.Option("--port", min=1024, max=65535, help="Where it answers, as `--set serve.port=`."),
]
MaxLenOption = Annotated[
    str | None,
    typer.Option(
        "--max-len",
        metavar="TOKENS",
        help="Of a request with its answer, such as 64K; as `--set serve.max_model_len=`.",
    ),
]
KnownBadOption = Annotated[
    bool,
    typer.Option(
        "--allow-known-bad", help="Allow a vLLM release that is known to fail on a Spark."
    ),
]
UnsafeOption = Annotated[
    bool, typer.Option("--allow-unsafe", help="Allow all that a recipe from elsewhere asks for.")
]
NameArgument = Annotated[
    str | None,
    typer.Argument(
        help="The deployment's name; may be left out where there is one alone.",
        autocompletion=completing(deployments),
    ),
]
NameOption = Annotated[
    str,
    typer.Option("--name", help="The deployment's name.", autocompletion=completing(deployments)),
]
PublicOption = Annotated[
    bool,
    typer.Option("--public", help="Listen on every address; every request then needs the key."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ClusterOption = Annotated[bool, typer.Option("--cluster", help="Over the nodes of config.yaml.")]
SoloOption = Annotated[
    bool,
    typer.Option("--solo", help="On this machine alone, whatever the recipe or config.yaml says."),
]
ONE_MACHINE = "cluster.min_nodes=null"
"""What `--solo` sets: a recipe that asks for several nodes is served on one."""
PageCacheOption = Annotated[
    bool,
    typer.Option(
        "--drop-page-cache", help="Drop the page cache (as root) when CUDA needs its memory."
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def named_hardware(wanted: str | None) -> Hardware | None:
    """Return the machine that was named; None for the one at hand. UsageError: it is unknown."""
    from sparkdeploy.estimate.hardware import HERE, facts_folder, hardware_named, read_hardware

    if wanted in {None, HERE}:
        return None
    return hardware_named(str(wanted), read_hardware(facts_folder() / "hardware.yaml"))


def stack_file(wanted: str | None, settings: Settings) -> Path | None:
    from sparkdeploy.recipe.library import is_path

    # A name is a recipe's: the usual command loads nothing of stacks.
    if wanted is None or not is_path(wanted):
        return None
    from sparkdeploy.gateway.stack import stack_path

    return stack_path(wanted, settings)


def overrides(
    assignments: list[str] | None,
    port: int | None = None,
    max_len: str | None = None,
    *,
    known_bad: bool = False,
    unsafe: bool = False,
    solo: bool = False,
) -> list[str]:
    """Return what `--set` gives, with the values and consents that have an option of their own."""
    from sparkdeploy.recipe.document import is_set

    given = {"allow_known_bad": known_bad, "allow_unsafe": unsafe}
    found = [
        *(assignments or ()),
        *(f"{name}=true" for name, is_given in given.items() if is_given),
    ]
    found += [ONE_MACHINE] if solo else []
    values = {"--port": ("serve.port", port), "--max-len": ("serve.max_model_len", max_len)}
    for option, (path, value) in values.items():
        if value is None:
            continue
        if twice := next((item for item in assignments or () if is_set(path, item)), None):
            raise UsageError(
                f"{option} and --set {twice} are about the same value, {path}",
                hint="give one of the two",
            )
        found.append(f"{path}={value}")
    return found


def require_name(name: str) -> None:
    from sparkdeploy.node.container import refuse_no_name

    refuse_no_name(name)


def requested(
    recipe: str | None,
    assignments: list[str] | None,
    settings: Settings,
    *,
    name: str = "main",
    public: bool = False,
    cluster: bool = False,
) -> Request:
    """Return what the options ask for; raise UsageError for a name Docker would not take."""
    from sparkdeploy.deploy.request import Request
    from sparkdeploy.plan.container import Deployment
    from sparkdeploy.recipe.library import default_recipe

    require_name(name)
    wanted = recipe or default_recipe(settings)
    return Request(wanted, tuple(assignments or ()), Deployment(name, public), cluster)


def answer(blocks: Iterable[Block], content: object, *, as_json: bool) -> None:
    """Print paragraphs and tables for a person, or the same for a program."""
    if as_json:
        console.answer_json(content)
        return
    console.answer_blocks(blocks)


def print_plan(plan: Plan, settings: Settings, shown: str | None = None, *, as_json: bool) -> None:
    from sparkdeploy.plan import report
    from sparkdeploy.plan.steps import plan_as_dict
    from sparkdeploy.server.phases import start_words

    if shown is None:
        start = start_words(plan, settings.state_dir)
        answer(report.plan_lines(plan, start), plan_as_dict(plan), as_json=as_json)
        return
    texts = {
        "dockerfile": report.dockerfile_text,
        "args": report.arguments_text,
        "container": report.container_text,
        "mods": report.mods_text,
    }
    text = texts[shown](plan)
    if as_json:
        console.answer_json({"show": shown, "text": text, "nodes": plan_as_dict(plan)["nodes"]})
    else:
        console.answer(text)
