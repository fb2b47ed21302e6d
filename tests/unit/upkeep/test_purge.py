"""What `sparkdeploy.uninstall` does to deployments over several nodes, and all kinds of folders."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sparkdeploy import uninstall as purging
from sparkdeploy.errors import NodeError
from sparkdeploy.settings import load_settings
from tests.fakes.containers import container
from tests.fakes.machines import NEW, Engine, Lab, build
from tests.fakes.two_nodes import part

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sparkdeploy.node.container import ImageFact
    from sparkdeploy.recipe.load import Library
    from sparkdeploy.upkeep.clean import Leftover


class NoImages(Engine):
    """An engine that has containers and nothing else."""

    def ended_checks(self) -> tuple[str, ...]:
        return ()

    def own_images(self) -> tuple[ImageFact, ...]:
        return ()

    def remove_own_images(self) -> tuple[str, ...]:
        return ()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the folders be those that nobody has named, below this one."""
    for kind in ("DATA", "CACHE", "STATE"):
        monkeypatch.delenv(f"SPARKDEPLOY_{kind}_DIR", raising=False)
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind.lower()))
    return tmp_path


@pytest.fixture
def lab(home: Path, monkeypatch: pytest.MonkeyPatch, shipped: Library) -> Lab:
    """Three machines with one deployment over all of them."""
    del home
    made = build(monkeypatch, shipped, 3)
    made.engines = [NoImages(lab=made) for _ in made.engines]
    made.up()
    return made


def agrees(_found: Sequence[Leftover]) -> bool:
    return True


def purge(engine: Engine) -> tuple[Leftover, ...]:
    return purging.purge(load_settings(), engine.host, agrees=agrees)


@pytest.mark.parametrize("role", ["data", "cache", "state"])
def test_a_folder_that_the_user_named_stays(
    home: Path, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    named = home / "named" / role
    named.mkdir(parents=True)
    (named / "thesis.txt").write_text("of a year")
    monkeypatch.setenv(f"SPARKDEPLOY_{role.upper()}_DIR", str(named))
    purge(NoImages(lab=Lab.__new__(Lab)))
    assert (named / "thesis.txt").read_text() == "of a year"


def test_a_deployment_over_several_nodes_goes_from_all_of_them(lab: Lab) -> None:
    removed = purge(lab.engines[0])
    assert lab.names() == [[], [], []]
    told = [(item.name, item.why) for item in removed if item.kind == "deployment"]
    assert told == [("main", "its parts on spark-1, spark-2, spark-3")]
    assert not load_settings().state_dir.exists()


def test_what_an_unreachable_node_has_stays_noted_until_it_is_back(lab: Lab) -> None:
    lab.gone = {"spark-3"}
    with pytest.raises(NodeError, match="spark-3 may still have parts") as caught:
        purge(lab.engines[0])
    assert caught.value.exit_code == 4
    assert lab.names() == [[], [], [NEW]]
    assert lab.record.nodes("main") == ("spark-3",)
    assert not load_settings().cache_dir.exists()

    lab.gone = set()
    purge(lab.engines[0])
    assert lab.names() == [[], [], []]
    assert lab.record.deployments() == ()


def test_a_worker_removes_nothing_and_names_the_head(home: Path) -> None:
    live = replace(part(NEW, "x", nodes="spark-2,spark-1", rank="1"), container_id="x")
    own = container("sparkdeploy-own", deployment="own")
    engine = NoImages({"x": live, "own": own})
    folder = home / "cache" / "sparkdeploy" / "engines"
    folder.mkdir(parents=True)
    with pytest.raises(NodeError, match="which spark-2 heads") as caught:
        purge(engine)
    assert caught.value.exit_code == 4
    assert "on spark-2, sparkdeploy down main;" in (caught.value.hint or "")
    assert engine.facts == {"x": live, "own": own}
    assert folder.is_dir()
