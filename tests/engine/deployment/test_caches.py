"""What one deployment leaves in /cache, and who finds it, in real containers."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

import pytest

from sparkdeploy import labels
from sparkdeploy.commands.request import Request, resolve
from sparkdeploy.deploy.prepare import prepare_folders
from sparkdeploy.node.node import Nodes, node_behind
from sparkdeploy.plan.container import Deployment
from sparkdeploy.plan.draft import decide
from sparkdeploy.settings import load_settings
from tests.engine.conftest import TEST_LABEL, until
from tests.fakes.plans import model_fact, observed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sparkdeploy.node.container import ContainerFact
    from sparkdeploy.node.host import DockerHost

pytestmark = pytest.mark.docker

PLANT = """
import os
os.makedirs("/cache/inductor")
open("/cache/inductor/planted.py", "w").write("planted")
"""
LOOK = """
import os
print([name for _, folders, files in os.walk("/cache") for name in folders + files])
"""


@pytest.fixture
def run(
    host: DockerHost,
    stand_in_image: str,
    mark: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[str, str, str], str]:
    """Run Python in the container that `up` would start for a recipe under a name."""
    for kind in ("config", "state", "data", "cache"):
        monkeypatch.setenv(f"SPARKDEPLOY_{kind.upper()}_DIR", str(tmp_path / kind))
    model = tmp_path / "model"
    model.mkdir()
    facts = observed(
        model=model_fact(treated=False, root=model, owner_uid=os.getuid(), owner_gid=os.getgid())
    )

    def run(recipe: str, name: str, program: str) -> str:
        settings = load_settings()
        deployment = Deployment(f"{name}-{mark}")
        plan = decide(resolve(Request(recipe), settings), settings, facts, deployment)
        assert plan.head.spec is not None
        spec = dataclasses.replace(
            plan.head.spec,
            image=stand_in_image,
            entrypoint=("python3", "-c"),
            command=(program,),
            gpus="none",
            ulimits=(),
            # What it promises would count against other tests that deploy on this engine.
            labels={**plan.head.spec.labels, TEST_LABEL: mark, labels.MEMORY: "0"},
        )
        part = dataclasses.replace(plan.head, spec=spec)
        nodes = Nodes(node_behind("here", host))
        prepare_folders(dataclasses.replace(plan, parts=(part,)), nodes)
        container_id = host.create(spec)
        host.start(container_id)
        until(lambda: _fact(host, container_id).state == "exited")
        said = b"".join(host.logs(container_id)).decode()
        assert _fact(host, container_id).exit_code == 0, said
        host.remove(container_id)
        return said

    return run


def test_nobody_finds_what_a_recipe_from_elsewhere_left(
    run: Callable[[str, str, str], str], tmp_path: Path
) -> None:
    theirs = tmp_path / "elsewhere" / "theirs.yaml"
    theirs.parent.mkdir()
    theirs.write_text("schema: 1\nname: theirs\ntitle: t\nextends: baseline\nserve: {port: 8001}\n")

    run(str(theirs), "theirs", PLANT)

    assert "planted.py" in run(str(theirs), "theirs", LOOK)
    assert "planted.py" not in run("baseline", "theirs", LOOK)
    assert "planted.py" not in run("baseline", "main", LOOK)
    assert "planted.py" not in run(str(theirs), "again", LOOK)


def test_own_recipes_of_one_model_need_not_compile_again(
    run: Callable[[str, str, str], str],
) -> None:
    run("baseline", "main", PLANT)

    assert "planted.py" in run("baseline", "beside", LOOK)


def _fact(host: DockerHost, container_id: str) -> ContainerFact:
    found = host.find_container(container_id)
    assert found is not None
    return found
