"""What of a container's spec reaches the Docker Engine, and what the engine is never asked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import docker
import pytest

from sparkdeploy import labels
from sparkdeploy.errors import NodeError
from sparkdeploy.node.container import ContainerFact, ContainerSpec, ImageFact, Mount, Ulimit
from sparkdeploy.node.host import DockerHost
from sparkdeploy.node.reports import last_end_s
from tests.fakes.plans import DOCKER

SPEC = ContainerSpec(
    name="sparkdeploy-main",
    image="sparkdeploy/plugin:0123456789abcdef",
    entrypoint=("/opt/venv/bin/python", "-m", "guard"),
    command=("--", "vllm", "serve"),
    env={"HF_HUB_OFFLINE": "1"},
    mounts=(Mount("/data/model", "/m"), Mount("/data/cache", "/cache", "rw")),
    user="1000:1001",
    gpus="all",
    tmpfs={"/tmp": "rw,nosuid"},
    shm_size_bytes=2**30,
    ulimits=(Ulimit("memlock", -1),),
    devices=("/dev/infiniband",),
    cap_add=("IPC_LOCK",),
    labels={labels.KIND: "container"},
)


class RecordingApi(docker.APIClient):
    """The SDK's own client, which forms a request and sends nothing."""

    def __init__(self) -> None:
        super().__init__(base_url="http://127.0.0.1:1", version="1.44")
        self.created: dict[str, Any] = {}

    def create_container_from_config(self, config: Any, name: str | None = None, *_: Any) -> Any:
        self.created = {"name": name, **config}
        return {"Id": "c" * 64}

    def remove_container(self, *_: Any, **__: Any) -> None:
        raise AssertionError("a container is removed")


@pytest.fixture
def api() -> Iterator[RecordingApi]:
    client = RecordingApi()
    yield client
    client.close()


@pytest.fixture
def host(api: RecordingApi) -> DockerHost:
    made = object.__new__(DockerHost)
    made._api, made._info = api, DOCKER
    return made


def test_all_of_a_spec_reaches_docker(host: DockerHost, api: RecordingApi) -> None:
    assert host.create(SPEC) == "c" * 64
    made, limits = api.created, api.created["HostConfig"]
    assert (made["name"], made["Image"], made["User"]) == (SPEC.name, SPEC.image, SPEC.user)
    assert (made["Entrypoint"], made["Cmd"]) == ([*SPEC.entrypoint], [*SPEC.command])
    assert made["Env"] == ["HF_HUB_OFFLINE=1"]
    assert made["Labels"] == SPEC.labels
    assert made["StopSignal"] == "SIGTERM"
    mounts = [(it["Source"], it["Target"], it["ReadOnly"]) for it in limits["Mounts"]]
    assert mounts == [("/data/model", "/m", True), ("/data/cache", "/cache", False)]
    assert limits["NetworkMode"] == "host"
    assert (limits["CapDrop"], limits["CapAdd"]) == (["ALL"], ["IPC_LOCK"])
    assert limits["SecurityOpt"] == ["no-new-privileges"]
    assert limits["ReadonlyRootfs"] is True
    assert limits["RestartPolicy"] == {"Name": "no"}
    assert limits["Tmpfs"] == SPEC.tmpfs
    assert limits["ShmSize"] == SPEC.shm_size_bytes
    assert limits["Ulimits"] == [{"Name": "memlock", "Soft": -1, "Hard": -1}]
    assert [it["PathOnHost"] for it in limits["Devices"]] == ["/dev/infiniband"]
    assert limits["DeviceRequests"][0]["Capabilities"] == [["gpu"]]
    assert limits["DeviceRequests"][0]["Count"] == -1
    assert limits["LogConfig"]["Config"] == {"max-size": "50m", "max-file": "3"}


def test_a_container_of_others_is_not_removed(
    host: DockerHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    fact = ContainerFact("d" * 64, "postgres", "sha256:0", "running", {})
    monkeypatch.setattr(host, "find_container", lambda _reference: fact)
    with pytest.raises(NodeError, match="postgres was not made by sparkdeploy"):
        host.remove("postgres")


def test_an_image_of_others_is_not_removed(
    host: DockerHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = ImageFact("sha256:0", ("theirs:1",), {}, 1)
    monkeypatch.setattr(host, "find_image", lambda _reference: image)
    with pytest.raises(NodeError, match="theirs:1 was not made by sparkdeploy"):
        host.remove_image("theirs:1")


def test_a_look_into_an_image_reaches_no_network_and_leaves_no_container(
    host: DockerHost, api: RecordingApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_off(_id: str) -> None:
        raise docker.errors.APIError("no such device")

    removed: list[str] = []
    monkeypatch.setattr(api, "start", break_off)
    monkeypatch.setattr(api, "remove_container", lambda key, **_: removed.append(key))
    with pytest.raises(NodeError, match="no such device"):
        host.run_once("image", ["true"])
    assert api.created["HostConfig"]["NetworkMode"] == "none"
    assert api.created["Labels"] == {labels.KIND: "container", labels.ROLE: "check"}
    assert removed == ["c" * 64]


@pytest.mark.parametrize("goes", [True, False])
def test_a_removal_that_another_command_began_is_waited_for_within_bounds(
    host: DockerHost, api: RecordingApi, monkeypatch: pytest.MonkeyPatch, goes: bool
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise docker.errors.APIError("", explanation="removal of it is already in progress")

    fact = ContainerFact("c" * 64, SPEC.name, "i", "removing", SPEC.labels)
    looks = iter([fact, fact, None if goes else fact, fact])
    times_s = iter((0.0, 29.0, 31.0))
    clock = SimpleNamespace(monotonic=lambda: next(times_s), sleep=lambda _s: None)
    monkeypatch.setattr("sparkdeploy.node.containers.time", clock)
    monkeypatch.setattr(api, "remove_container", refuse)
    monkeypatch.setattr(host, "find_container", lambda _: next(looks))
    with contextlib.nullcontext() if goes else pytest.raises(NodeError, match="in progress"):
        host.remove(SPEC.name)


@pytest.mark.parametrize(
    ("finished", "started", "found"),
    [
        ("1970-01-01T00:00:05Z", "1970-01-01T00:00:06.5Z", 5.0),
        ("1970-01-01T00:00:05Z", "1970-01-01T00:00:04Z", None),
        ("0001-01-01T00:00:00Z", "1970-01-01T00:00:04Z", None),
    ],
)
def test_a_log_of_this_run_begins_where_the_one_before_ended(
    finished: str, started: str, found: float | None
) -> None:
    fact = ContainerFact("c", "x", "i", "running", {}, started_at=started, finished_at=finished)
    assert last_end_s(fact) == found
