"""Options that several commands share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sparkdeploy.commands.drafting import Request
    from sparkdeploy.settings import Settings

RecipeArgument = Annotated[
    str | None,
    typer.Argument(help="A recipe's name or file; the configured default when left out."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Override one value of the recipe."),
]
KnownBadOption = Annotated[
    bool,
    typer.Option("--allow-known-bad", help="Take a vLLM release that is known to fail here."),
]
UnsafeOption = Annotated[
    bool,
    typer.Option("--allow-unsafe", help="Take all that a recipe from elsewhere asks for."),
]
NameOption = Annotated[str, typer.Option("--name", help="The deployment's name.")]
PublicOption = Annotated[
    bool,
    typer.Option("--public", help="Listen on every address; every request then needs the key."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ClusterOption = Annotated[bool, typer.Option("--cluster", help="Over the nodes of config.yaml.")]
PageCacheOption = Annotated[
    bool, typer.Option("--drop-page-cache", help="Drop it (root) when CUDA needs the room.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def with_consent(
    assignments: list[str] | None, *, known_bad: bool, unsafe: bool
) -> list[str] | None:
    """Return the overrides with what the user consents to among them."""
    given = {"allow_known_bad=true": known_bad, "allow_unsafe=true": unsafe}
    consents = [assignment for assignment, is_given in given.items() if is_given]
    return [*(assignments or ()), *consents] if consents else assignments


def requested(
    recipe: str | None,
    assignments: list[str] | None,
    *,
    name: str,
    public: bool,
    settings: Settings,
    cluster: bool = False,
) -> Request:
    """Return what the options ask for; raise UsageError for a name Docker would not take."""
    from sparkdeploy.commands.drafting import Reach, make_request
    from sparkdeploy.plan.launch import Exposure

    return make_request(
        recipe,
        assignments,
        name=name,
        exposure=Exposure.PUBLIC if public else Exposure.LOOPBACK,
        settings=settings,
        reach=Reach.CLUSTER if cluster else Reach.HERE,
    )
