"""`image build`: the stages of an engine or of a recipe's, built."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sparkdeploy.deploy.nodes import connect
from sparkdeploy.deploy.prepare import build_stages
from sparkdeploy.deploy.request import Request, pin_image, refuse_missing_mods
from sparkdeploy.errors import BuildError, NodeError, RecipeError, UsageError
from sparkdeploy.image.emulation import PLATFORMS, platform_of, refuse_without_emulation
from sparkdeploy.image.lock import Architecture
from sparkdeploy.image.network import refuse_credentials, registry_reference
from sparkdeploy.image.pins import ImageInspector
from sparkdeploy.image.stages import Stage, stages_of
from sparkdeploy.node import facts
from sparkdeploy.node.container import ImageFact
from sparkdeploy.node.host import DockerHost
from sparkdeploy.plan.images import choose_base_source, image_steps, stages_for
from sparkdeploy.plan.steps import Action, ImageStep
from sparkdeploy.recipe.engine import Engine
from sparkdeploy.recipe.image_name import is_tag
from sparkdeploy.recipe.library import is_path
from sparkdeploy.recipe.load import Resolved, library, load_engine, load_recipe
from sparkdeploy.recipe.words import closest, shown
from sparkdeploy.settings import Settings, resources


@dataclass(frozen=True, slots=True)
class StageImage:
    stage: str
    tag: str
    image_id: str
    engine: str
    platform: str
    size_bytes: int
    fingerprint: str
    was_built: bool


def build_engine(
    name: str, assignments: Sequence[str], platform: str | None, settings: Settings
) -> tuple[StageImage, ...]:
    """Build every stage of an engine, or of a recipe's, that is not here; return them all.

    `platform` is Docker's word, and its own where there is None. Raises NodeError before anything
    is built where this machine cannot run the other platform's programs, and BuildError.
    """
    meant = what_is_meant(name, assignments, settings)
    engine = meant.engine if isinstance(meant, Resolved) else meant
    if meant is engine and is_tag(engine.image):
        raise BuildError(
            f"engine {name} stands on the tag {engine.image}, which is asked for with a"
            " recipe alone",
            hint=f"name a recipe: `sparkdeploy image build RECIPE --set engine={name}`",
        )
    refuse_credentials(settings)
    with connect(settings) as host:
        own = facts.architecture_of(host.info())
        wanted = own if platform is None else PLATFORMS[platform]
        if wanted != own:
            _refuse_foreign(engine, wanted, own)
        if isinstance(meant, Resolved):
            refuse_missing_mods(meant)
            foreign = platform_of(wanted) if wanted != own else None
            inspector = ImageInspector(host, wanted, settings, foreign)
            meant = pin_image(meant, Request(name, tuple(assignments)), inspector)
        steps = _steps(meant, wanted, host, settings)
        missing = [step.stage for step in steps if step.action is Action.BUILD]
        if wanted != own:
            missing = [_for_platform(stage, host, settings) for stage in missing]
        build_stages(missing, host, settings)
        seen = ((step, host.find_image(step.stage.tag)) for step in steps)
        # What lies below a stage that was here may be gone.
        return tuple(_stage_image(step, image) for step, image in seen if image is not None)


def what_is_meant(name: str, assignments: Sequence[str], settings: Settings) -> Engine | Resolved:
    """Return an engine by its name, or a recipe; UsageError for a changed engine."""
    known = library(settings)
    if name in known.engine_files():
        if assignments:
            raise UsageError(
                f"{name} is an engine: values of recipes say nothing to it",
                hint="name a recipe, or leave out --set and --allow-...",
            )
        return load_engine(known, name)
    if not is_path(name) and name not in known.recipe_files():
        raise RecipeError(
            f"unknown engine or recipe {shown(name)}",
            hint=closest(name, {**known.engine_files(), **known.recipe_files()}),
        )
    return load_recipe(known, name, assignments)


def _refuse_foreign(engine: Engine, wanted: Architecture, own: Architecture) -> None:
    platform = platform_of(wanted)
    if engine.kind == "source":
        raise BuildError(
            f"engine {engine.name} compiles vLLM, which takes days where {platform} is emulated",
            hint="build it on such a machine, and bring it with docker save and docker load",
        )
    processor = facts.architecture()
    if processor != own:
        raise NodeError(
            f"the Docker Engine is for {own} and this machine is {processor}: whether {platform}"
            " can be emulated there is not known here",
            hint="run this on the Docker Engine's own machine",
        )
    refuse_without_emulation(wanted)


def _steps(
    meant: Engine | Resolved, architecture: Architecture, host: DockerHost, settings: Settings
) -> tuple[ImageStep, ...]:
    images = {tag: image for image in host.own_images() for tag in image.tags}
    engine = meant.engine if isinstance(meant, Resolved) else meant
    base_source = choose_base_source(engine, architecture, images, settings, host)
    if isinstance(meant, Resolved):
        stages = stages_for(meant, base_source=base_source, architecture=architecture)
    else:
        stages = stages_of(
            engine, base_source=base_source, architecture=architecture, resources=resources()
        )
    return image_steps(stages, images)


def _for_platform(stage: Stage, host: DockerHost, settings: Settings) -> Stage:
    """Return the stage as it is built where another platform is emulated."""
    stage = replace(stage, platform=platform_of(stage.architecture))
    image = stage.registry_image
    if image is None or "@" in image:
        return stage
    # A pulled tag would stay here with the other platform's image, and the next build for this
    # machine would stand on it. A digest is nobody's default.
    digest = host.registry_digest(registry_reference(image, settings.hosts.container_registry))
    if digest is None:
        raise BuildError(
            f"no registry answers for {image}, which {stage.engine} stands on for {stage.platform}",
            hint="does the registry answer? `container_registry` in config.yaml names another",
        )
    return replace(stage, registry_image=f"{image}@{digest}")


def _stage_image(step: ImageStep, image: ImageFact) -> StageImage:
    stage = step.stage
    return StageImage(
        stage=stage.name,
        tag=stage.tag,
        image_id=image.image_id,
        engine=stage.engine,
        platform=platform_of(stage.architecture),
        size_bytes=image.size_bytes,
        fingerprint=stage.fingerprint,
        was_built=step.action is Action.BUILD,
    )
