"""The engine for CPUs that a rehearsal runs on.

The tiny model is served by the nearest release: its drafts and conversions were shown on each. Of
other models vLLM for CPUs learned one after the other (0.25.1 has no latent attention), so that
they are served by the newest.
"""

from collections.abc import Iterable
from contextlib import suppress

from sparkdeploy.deploy.nodes import connect
from sparkdeploy.errors import RecipeError
from sparkdeploy.image.network import has_torch_at_hand
from sparkdeploy.image.stages import BASE_SOURCES, stages_of
from sparkdeploy.node import facts
from sparkdeploy.node.host import DockerHost
from sparkdeploy.recipe.engine import Engine
from sparkdeploy.recipe.image_pins import is_unknown
from sparkdeploy.recipe.library import library
from sparkdeploy.recipe.load import Library, Resolved, load_engine
from sparkdeploy.recipe.releases import parse_version
from sparkdeploy.settings import Settings, resources
from sparkdeploy.terminal.console import console


def rehearsal_engine(resolved: Resolved, settings: Settings, *, nearest: bool) -> Engine:
    """Return the recipe's own engine for CPUs, the one in the settings, or the nearest or newest.

    One that cannot be had here is passed over: its image is not here, and neither is its build of
    torch nor the index that has it. That is said. Raises RecipeError for a setting that names no
    such engine.
    """
    own, known = resolved.engine, library(settings)
    if own.kind == "cpu":
        return own
    if settings.rehearsal_engine:
        return _named(known, settings)
    engines: list[Engine] = []
    for name in known.engine_files():
        # Somebody's broken file of another engine keeps nobody from rehearsing.
        with suppress(RecipeError):
            engines.append(load_engine(known, name))
    ranked = by_nearness(own if nearest else None, engines)
    with connect(settings) as docker:
        found = next((it for it in ranked if _is_at_hand(it, docker, settings)), None)
    if found is None:
        # Its build will say what is missing.
        return ranked[0]
    if found is not ranked[0]:
        console.info(
            f"{found.name} stands in for {ranked[0].name}, whose build of torch is out of reach: "
            "`torch_cpu_index` in config.yaml names another index"
        )
    return found


def by_nearness(own: Engine | None, candidates: Iterable[Engine]) -> list[Engine]:
    """Return the engines for CPUs among these, the one nearest to the recipe's own first.

    Between two that are equally near the newer one goes first, and the newest of all for None and
    where nobody knows what release an image has.
    """
    for_cpus = (engine for engine in candidates if engine.kind == "cpu")
    engines = sorted(for_cpus, key=_number, reverse=True)
    if own is None or is_unknown(own):
        return engines
    return sorted(engines, key=lambda engine: abs(_number(engine) - _number(own)))


def _number(engine: Engine) -> int:
    major, minor, patch = parse_version(engine.vllm)
    return (major * 1000 + minor) * 1000 + patch


def _named(known: Library, settings: Settings) -> Engine:
    engine = load_engine(known, settings.rehearsal_engine or "")
    if engine.kind != "cpu":
        where = settings.sources.get("rehearsal_engine", "the environment")
        message = f"rehearsal_engine is {engine.name}, which is not for CPUs"
        raise RecipeError(message, hint=f"it is set by {where}")
    return engine


def _is_at_hand(engine: Engine, docker: DockerHost, settings: Settings) -> bool:
    """Say whether its image is here on either base, or what builds it."""
    architecture = facts.architecture_of(docker.info())
    tags = {tag for image in docker.own_images() for tag in image.tags}
    stages = [
        stage
        for source in BASE_SOURCES
        for stage in stages_of(
            engine, base_source=source, architecture=architecture, resources=resources()
        )
        if stage.name == "engine"
    ]
    return any(it.tag in tags for it in stages) or has_torch_at_hand(stages[0], settings)
