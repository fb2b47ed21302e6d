"""Which engine for CPUs a rehearsal takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from requests import ConnectionError as NoConnection

from sparkdeploy.errors import RecipeError
from sparkdeploy.recipe.engine import Engine
from sparkdeploy.recipe.load import Library, load_engine, load_recipe
from sparkdeploy.rehearsal import engine as module
from sparkdeploy.settings import load_settings
from tests.fakes.containers import FakeContainers
from tests.fakes.plans import DOCKER, built, made_stages

NAMES = ("cpu-0.25", "cpu-0.32", "cuda-0.25", "cuda-0.33")


@pytest.fixture
def docker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeContainers:
    """An empty engine on a machine where PyTorch's index does not answer."""

    def silent(*_: object, **_options: object) -> None:
        raise NoConnection

    made = FakeContainers(engine=replace(DOCKER, architecture="x86_64"))
    monkeypatch.setattr(module, "connect", lambda _settings: made)
    monkeypatch.setattr("requests.head", silent)
    monkeypatch.setenv("SPARKDEPLOY_WHEELHOUSE", str(tmp_path))
    monkeypatch.delenv("SPARKDEPLOY_REHEARSAL_ENGINE", raising=False)
    return made


def chosen(shipped: Library, recipe: str = "v2", *settings: str) -> str:
    resolved = load_recipe(shipped, recipe, settings)
    return module.rehearsal_engine(resolved, load_settings(), nearest=True).name


def answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("requests.head", lambda *_, **_options: None)


def of_release(shipped: Library, vllm: str) -> Engine:
    return load_engine(shipped, "cuda-0.25").model_copy(update={"vllm": vllm})


@pytest.mark.parametrize(
    ("vllm", "name"),
    [
        ("0.19.1", "cpu-0.25"),
        ("0.25.1", "cpu-0.25"),
        ("0.28.0", "cpu-0.25"),
        ("0.29.0", "cpu-0.32"),
        ("0.33.0", "cpu-0.32"),
        ("1.0.0", "cpu-0.32"),
    ],
)
def test_the_nearest_release_goes_first(shipped: Library, vllm: str, name: str) -> None:
    engines = [load_engine(shipped, name) for name in NAMES]
    first, second = module.by_nearness(of_release(shipped, vllm), engines)
    assert first.name == name
    assert second.name != name


@pytest.mark.usefixtures("docker")
@pytest.mark.parametrize(("engine", "name"), [("cuda-0.25", "cpu-0.25"), ("cuda-0.33", "cpu-0.32")])
def test_a_rehearsal_takes_the_release_nearest_to_the_recipes(
    shipped: Library, monkeypatch: pytest.MonkeyPatch, engine: str, name: str
) -> None:
    answers(monkeypatch)
    assert chosen(shipped, "v2", f"engine={engine}") == name


def test_a_farther_one_that_is_here_goes_before_one_that_cannot_be_had(
    shipped: Library, docker: FakeContainers, capsys: pytest.CaptureFixture[str]
) -> None:
    assert chosen(shipped) == "cpu-0.25", "neither can be had: the build says what is missing"
    stages = made_stages(load_engine(shipped, "cpu-0.32"), "debian", "x86_64")
    docker.images = tuple(built(stage) for stage in stages)
    assert chosen(shipped) == "cpu-0.32"
    assert "cpu-0.32 stands in for cpu-0.25" in capsys.readouterr().err


def test_what_the_user_names_goes_before_all(
    shipped: Library, docker: FakeContainers, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert docker.images == ()
    monkeypatch.setenv("SPARKDEPLOY_REHEARSAL_ENGINE", "cpu-0.32")
    assert chosen(shipped) == "cpu-0.32"
    assert chosen(shipped, "v2", "engine=cpu-0.25") == "cpu-0.25"
    monkeypatch.setenv("SPARKDEPLOY_REHEARSAL_ENGINE", "cuda-0.25")
    with pytest.raises(RecipeError, match="not for CPUs") as refused:
        chosen(shipped)
    assert "SPARKDEPLOY_REHEARSAL_ENGINE" in (refused.value.hint or "")
