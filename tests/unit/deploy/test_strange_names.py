"""Names that were typed and are none of a deployment, and containers that are not ours."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdeploy.deploy import lifecycle, removal
from sparkdeploy.errors import SparkdeployError
from sparkdeploy.monitor import status as operating
from sparkdeploy.settings import load_settings
from sparkdeploy.upkeep import diagnose
from tests.examples import examples
from tests.fakes.containers import FakeContainers, container
from tests.fakes.machines import reached_alone

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_container_that_was_renamed_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    renamed = container("postgres", deployment="main")
    engine = FakeContainers.of(renamed, container("sparkdeploy-main"))
    reached_alone(monkeypatch, engine)

    assert removal.down("main") == ("sparkdeploy-main",)
    assert list(engine.facts.values()) == [renamed]


@settings(max_examples=examples(150))
@given(
    name=st.sampled_from(["/x", "../../x", "..", ".", "", "*", "[", "main\0", "x" * 300, "a/../b"])
    | st.text(max_size=6),
    command=st.sampled_from(["diagnose", "rollback", "down", "logs"]),
)
def test_a_name_that_is_none_is_no_way_to_another_file(name: str, command: str) -> None:
    state = load_settings().state_dir
    (state / "cluster" / "deployments").mkdir(parents=True, exist_ok=True)
    secret = state / "x.json"
    secret.write_text('["spark-1"]')
    calls: dict[str, Callable[[], object]] = {
        "diagnose": lambda: diagnose.diagnose(name, state / "bundle.tar.gz"),
        "rollback": lambda: lifecycle.roll_back(name),
        "down": lambda: removal.down(name),
        "logs": lambda: list(operating.read_log(name, follow=False, tail=None)),
    }
    with pytest.MonkeyPatch.context() as patch:
        reached_alone(patch, FakeContainers())
        patch.setattr(diagnose, "connect", lambda _settings: FakeContainers())
        with contextlib.suppress(SparkdeployError):
            calls[command]()

    assert secret.read_text() == '["spark-1"]'
