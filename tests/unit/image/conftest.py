"""The shipped engines, and settings that name nothing of this machine."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from sparkdeploy.image.stages import BaseSource, Stage
from sparkdeploy.recipe.engine import Engine
from sparkdeploy.recipe.load import Library, load_engine
from sparkdeploy.settings import BuildNetwork, Hosts, Settings, load_settings, resources
from tests.fakes.plans import made_stages

LoadEngine = Callable[[str], Engine]
Stages = tuple[Stage, ...]
MakeStages = Callable[..., Stages]


@pytest.fixture(scope="session")
def load() -> LoadEngine:
    """Loads a shipped engine by name."""
    library = Library((resources() / "recipes",))
    return lambda name: load_engine(library, name)


@pytest.fixture(scope="session")
def make_stages(load: LoadEngine) -> MakeStages:
    """Makes the stages of a shipped engine, or of one that differs from it as is said."""

    def make(name: str, base_source: BaseSource = "registry", **changes: object) -> Stages:
        return made_stages(load(name).model_copy(update=changes), base_source)

    return make


@pytest.fixture
def stages(load: LoadEngine) -> Stages:
    """The stages of the CPU engine."""
    return made_stages(load("cpu-0.32"), architecture="x86_64")


@pytest.fixture
def settings() -> Settings:
    """Settings with folders of their own, and hosts that nobody has."""
    return replace(
        load_settings(),
        hosts=Hosts(
            container_registry="registry.test",
            github_registry="github-registry.test",
            torch_cpu_index="https://torch.test/cpu",
            torch_cuda_index="https://torch.test/cuda",
            debian_mirror="http://debian.test/debian",
            hub="https://hub.test",
            package_index="https://index.test/simple",
            source_forge="https://forge.test",
        ),
        build=BuildNetwork(),
    )
