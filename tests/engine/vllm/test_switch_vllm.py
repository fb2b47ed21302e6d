"""`switch`, `stop` and `start` with the real vLLM: two recipes for one twin, under a client."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from sparkdeploy.node.host import DockerHost
from tests.engine.asking import ALIAS, MODELS, Client
from tests.engine.conftest import free_port, until
from tests.engine.program import Program
from tests.engine.vllm.twin_user import TWIN_RECIPE, twin_user, unique_name

pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.runs("down", "start", "status", "stop", "switch", "up"),
]

NAME, PORT = unique_name("switch"), free_port()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """A user with two recipes, whose models have a name each; the first has an alias too."""
    made = twin_user(tmp_path_factory.mktemp("switch"), port=PORT)
    recipes = made.root / "config" / "recipes"
    tiny = json.loads((recipes / f"{TWIN_RECIPE}.yaml").read_text())
    for model, names in zip(MODELS, ([MODELS[0], ALIAS], [MODELS[1]]), strict=True):
        own = {**tiny, "name": model, "model": {**tiny["model"], "served_name": names}}
        (recipes / f"{model}.yaml").write_text(json.dumps(own))
    yield made
    made.run("down", "--yes", NAME)


def test_vllm_makes_room_for_another_model_and_starts_again_as_the_same(
    program: Program, host: DockerHost
) -> None:
    first = program.answer("up", "first", "--name", NAME, "--yes")
    with Client(PORT) as client:
        until(lambda: any(it.model for it in client.replies))
        done = program.answer("switch", "second", "--name", NAME, "--yes")
        until(lambda: "second" in {it.model for it in client.replies})
    assert done["base_url"] == first["base_url"]
    client.check_names()
    print(f"silence: {client.downtime_s():.1f} s by the client, {done['downtime_s']:.1f} s told")
    assert abs(client.downtime_s() - done["downtime_s"]) < 5
    before = host.find_container(f"sparkdeploy-{NAME}")
    assert before is not None
    stopped = program.run("stop", NAME)
    assert stopped.returncode == 0, stopped.stderr
    (row,) = program.answer("status", NAME)
    assert (row["state"], row["exit_code"]) == ("stopped", 0), row
    started = program.answer("start", NAME)
    assert (started["changed"], started["base_url"]) == (True, first["base_url"])
    after = host.find_container(f"sparkdeploy-{NAME}")
    assert after is not None
    assert after.container_id == before.container_id
    print(f"start after stop: {started['startup_s']:.1f} s")
