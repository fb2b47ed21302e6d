"""The shipped engines, and settings that name nothing of this machine."""

from collections.abc import Callable
from pathlib import Path

import pytest

from sparkdeploy.image.stages import Stage, stages_of
from sparkdeploy.recipe.engine import Engine
from sparkdeploy.recipe.load import Library, load_engine
from sparkdeploy.settings import BuildNetwork, Hosts, Settings, resources

LoadEngine = Callable[[str], Engine]
MakeSettings = Callable[[BuildNetwork], Settings]


@pytest.fixture(scope="session")
def load() -> LoadEngine:
    """Loads a shipped engine by name."""
    library = Library((resources() / "recipes",))
    return lambda name: load_engine(library, name)


@pytest.fixture
def stages(load: LoadEngine) -> tuple[Stage, ...]:
    """The stages of the CPU engine."""
    return stages_of(
        load("cpu-0.32"), base_source="registry", architecture="x86_64", resources=resources()
    )


@pytest.fixture
def make_settings(tmp_path: Path) -> MakeSettings:
    """Makes settings with a given network and folders of their own."""

    def make(build: BuildNetwork) -> Settings:
        return Settings(
            config_dir=tmp_path / "config",
            state_dir=tmp_path / "state",
            cache_dir=tmp_path / "cache",
            data_dir=tmp_path / "data",
            lock_dir=tmp_path / "locks",
            hub_cache=tmp_path / "hub",
            docker_host=None,
            default_recipe="v2",
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
            build=build,
            node_name="test",
        )

    return make
