"""What a campaign leaves: one page and one bundle, made anew from its folder after each recipe."""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from sparkdeploy import __version__
from sparkdeploy.bench.campaign.bundle import (
    NOT_RUN,
    CampaignBundle,
    SharedRecipe,
    SharedStep,
    bundle_text,
    shareable,
)
from sparkdeploy.bench.campaign.folder import STOPPED, StepKind
from sparkdeploy.bench.campaign.page import campaign_page
from sparkdeploy.bench.campaign.privacy import Private, known_names, secret_values
from sparkdeploy.bench.campaign.steps import merged
from sparkdeploy.bench.files import write_whole
from sparkdeploy.bench.quality.capture import read_capture
from sparkdeploy.bench.quality.comparison import QualityFigures, compare
from sparkdeploy.bench.quality.needle import NeedleResult
from sparkdeploy.bench.quality.tool_calls import CaseResult
from sparkdeploy.bench.report.published import read_published
from sparkdeploy.bench.run import ISO_8601
from sparkdeploy.deploy.evidence import known_secrets
from sparkdeploy.deploy.request import Request, resolve
from sparkdeploy.errors import BenchError, SparkdeployError
from sparkdeploy.node.facts import own_name
from sparkdeploy.recipe.paths import named_paths
from sparkdeploy.secret_shapes import SHORTEST_KNOWN
from sparkdeploy.settings import LOGIN, resources
from sparkdeploy.terminal.console import console

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sparkdeploy.bench.campaign.folder import Campaign
    from sparkdeploy.settings import Settings

SETTINGS_OF = (
    "VLLM_",
    "NCCL_",
    "TORCH",
    "PYTORCH_",
    "CUDA_",
    "FLASHINFER_",
    "OMP_",
    "INSTANTTENSOR_",
)
"""Beginnings of variables that set how something computes; their values tell nothing of a user."""


def write_findings(
    campaign: Campaign, settings: Settings, put_back: SharedStep | None = None
) -> None:
    """Write page and bundle, both without what is private."""
    bundle = shareable(bundle_of(campaign, put_back), private_of(campaign, settings))
    write_whole(bundle_text(bundle), campaign.bundle)
    published = read_published(resources() / "recipes" / "facts" / "published.yaml")
    write_whole(campaign_page(bundle, published), campaign.report)


def bundle_of(campaign: Campaign, put_back: SharedStep | None = None) -> CampaignBundle:
    """Return all that the folder holds, still with what is private."""
    plan = campaign.plan
    recipes = tuple(
        SharedRecipe(
            name=recipe.name,
            title=recipe.title,
            steps=tuple(
                campaign.ended(index, kind) or SharedStep(kind.value, NOT_RUN)
                for kind in recipe.kinds
            ),
            run=merged(campaign, index),
            quality=_quality(campaign, index),
            needles=campaign.read_result(index, StepKind.NEEDLE, tuple[NeedleResult, ...]) or (),
            tools=campaign.read_result(index, StepKind.TOOLS, tuple[CaseResult, ...]) or (),
            tuning=campaign.read_result(index, StepKind.TUNE, str) or "",
        )
        for index, recipe in enumerate(plan.recipes)
    )
    machines = (item.run.origin.machine for item in recipes if item.run is not None)
    ended_early = ["it was ended before its time"] if campaign.is_marked(STOPPED) else []
    return CampaignBundle(
        campaign_id=campaign.path.name,
        started_at=plan.started_at,
        made_at=f"{datetime.now(UTC):{ISO_8601}}",
        sparkdeploy=__version__,
        is_quick=plan.is_quick,
        machine=next(machines, None),
        recipes=recipes,
        notes=(*ended_early, *([f"at the end: {put_back.words}"] if put_back else [])),
    )


def _quality(campaign: Campaign, index: int) -> QualityFigures | None:
    """Hold a recipe against the first that was captured; None for that one, and without one."""
    recipes = campaign.plan.recipes
    paths = [campaign.result(number, StepKind.QUALITY) for number in range(len(recipes))]
    first = next((number for number, path in enumerate(paths) if path.exists()), None)
    if first is None or first == index or not paths[index].exists():
        return None
    try:
        comparison = compare(read_capture(paths[first]), read_capture(paths[index]))
    except BenchError as error:
        console.warn(error.message)
        return None
    return replace(comparison.figures, against=recipes[first].name)


def private_of(campaign: Campaign, settings: Settings) -> Private:
    """Gather what this machine and this campaign know and others need not."""
    before = None if campaign.is_over else campaign.before
    env: dict[str, str] = dict(before.env) if before is not None else {}
    folders = {str(Path.home()), *map(str, _own_folders(settings))}
    for recipe in campaign.plan.recipes:
        if Path(recipe.wanted).is_absolute():
            folders.add(recipe.wanted)
        try:
            resolved = resolve(Request(recipe.wanted, campaign.plan.assignments), settings)
        except SparkdeployError:
            continue  # It was readable when it was measured; its values are in no record.
        env |= resolved.recipe.serve.env
        folders |= {str(path) for _, path in named_paths(resolved.recipe)}
    secrets = {
        *known_secrets([settings.state_dir / "keys"]),
        *secret_values(os.environ, SHORTEST_KNOWN),
        *_unusual(env),
    }
    return Private(
        secrets=tuple(sorted(secrets, key=lambda item: (-len(item), item))),
        names=known_names(_names(settings)),
        folders=tuple(sorted(folders - {"/"}, key=lambda item: (-len(item), item))),
    )


def _own_folders(settings: Settings) -> Iterator[Path]:
    yield from (settings.config_dir, settings.state_dir, settings.cache_dir, settings.data_dir)
    yield settings.hub_cache


def _unusual(env: Mapping[str, str]) -> Iterator[str]:
    """Yield values of variables that are not settings of what computes."""
    for name, value in env.items():
        if len(value) >= SHORTEST_KNOWN and not name.startswith(SETTINGS_OF):
            yield value


def _names(settings: Settings) -> Iterator[str | None]:
    here = (settings.node_name, platform.node())
    yield from here
    yield from (name.partition(".")[0] for name in here)
    yield from (own_name(), os.environ.get("USER"), os.environ.get("SUDO_USER"))
    nodes = (settings.cluster or {}).get("nodes")
    for node in nodes if isinstance(nodes, list) else ():
        if isinstance(node, dict):
            yield from (str(node[part]) for part in ("name", "ssh", "user") if part in node)
    urls = [settings.build.index_url, settings.docker_host, *settings.build.proxies.values()]
    yield from (urlsplit(LOGIN.sub("//", url)).hostname for url in urls if url)
    for name in (
        "container_registry",
        "github_registry",
        "package_index",
        "hub",
        "debian_mirror",
        "source_forge",
    ):
        if settings.sources.get(name, "default") != "default":
            url = getattr(settings.hosts, name)
            yield urlsplit(url if "//" in url else f"//{url}").hostname
