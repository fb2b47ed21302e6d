"""Docker's file of logins with something wrong in it: named, with its file, and no raw warning."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import docker.auth
import pytest

from sparkdeploy.errors import NodeError
from sparkdeploy.node.connection import refuse_unreadable_logins, translated

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def logins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    return tmp_path / "config.json"


@pytest.mark.parametrize(
    "entry", [{"auth": "?"}, {"auth": "b3ds"}, {"auth": "/w=="}, {"auth": None}, "owl"]
)
def test_a_login_that_is_none_is_named(logins: Path, entry: Any) -> None:
    logins.write_text(json.dumps({"auths": {"lab.example": entry, "other": {}}}))
    with pytest.raises(NodeError) as caught:
        refuse_unreadable_logins()
    assert f"the login for lab.example could not be read from {logins}: it" in caught.value.message
    assert "docker login lab.example" in (caught.value.hint or "")


@pytest.mark.filterwarnings("ignore:docker-credential")
@pytest.mark.parametrize("helper", ["missing", "exits"])
def test_a_helper_that_fails_is_named(
    logins: Path, monkeypatch: pytest.MonkeyPatch, helper: str
) -> None:
    program = logins.with_name("docker-credential-exits")
    program.write_text("#!/bin/sh\necho locked\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(logins.parent), prepend=":")
    store = {"credsStore": helper}
    with pytest.raises(NodeError) as caught, translated("pull lab.example/x"):
        docker.auth.load_config(config_dict=dict(store)).resolve_authconfig("lab.example")
    said = caught.value.message
    assert said.startswith(f"pull lab.example/x: its login could not be read from {logins}: ")
    assert ("locked" if helper == "exits" else "docker-credential-missing not installed") in said
