"""What tests with a real Docker Engine share; everything they make carries a label of theirs."""

import atexit
import contextlib
import itertools
import os
import signal
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import docker
import pytest

from sparkdeploy import labels
from sparkdeploy.errors import NodeError
from sparkdeploy.image.build import build_stage, find_built
from sparkdeploy.node.container import ContainerSpec
from sparkdeploy.node.host import DockerHost
from sparkdeploy.server.client import ServedModel
from sparkdeploy.settings import Settings, load_settings
from sparkdeploy.terminal.console import console
from tests.engine.processor import hides_avx512, narrowed_engines
from tests.engine.shipped_stages import shipped_stages
from tests.engine.stand_in.image import SERVER, build_stand_in

TEST_LABEL = labels.PREFIX + "test"
PORTS = range(18200, 19200)
DEADLINE_S = 180.0
"""When a wait for something that is sure to come is given up, on however busy a machine."""
WITHOUT_DOCKER = "SPARKDEPLOY_TESTS_WITHOUT_DOCKER"

_port_numbers = itertools.count(uuid.uuid4().int % len(PORTS))
_claims: dict[int, socket.socket] = {}

SpecMaker = Callable[..., ContainerSpec]


@pytest.fixture(scope="session", autouse=True)
def interrupts_are_heard() -> Iterator[None]:
    """A shell starts background jobs with SIGINT ignored, `nohup` with SIGHUP; CI may be either."""
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
        signal.SIGHUP: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="package", autouse=True)
def avx512_is_hidden() -> Iterator[None]:
    """Where the run asks for it, engines' containers find no AVX-512."""
    with narrowed_engines() if hides_avx512() else contextlib.nullcontext():
        yield


@pytest.fixture(scope="session")
def host() -> Iterator[DockerHost]:
    """A connection to this machine's Docker Engine; no engine is a failure, not a skip."""
    try:
        connection = DockerHost(os.environ.get("DOCKER_HOST"))
    except NodeError as error:
        if os.environ.get(WITHOUT_DOCKER):
            pytest.skip(f"{WITHOUT_DOCKER} is set")
        pytest.fail(f"{error.message} ({error.hint}; or set {WITHOUT_DOCKER}=1)", pytrace=False)
    with connection:
        yield connection


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """This machine's settings with a cache of their own."""
    return replace(load_settings(), cache_dir=tmp_path / "cache")


@pytest.fixture(scope="session")
def python_base_image(host: DockerHost) -> str:
    """A Debian with Python: the CPU engine's base stage, made from packages when missing."""
    stage = shipped_stages()[0]
    if find_built(host, stage) is None:
        with console.step("base image for tests") as step:
            build_stage(host, stage, load_settings(), step)
    return stage.tag


@pytest.fixture(scope="session")
def stand_in_image(host: DockerHost, python_base_image: str) -> Iterator[str]:
    """The stand-in engine's image, removed when the session ends."""
    tag = build_stand_in(host, python_base_image)
    yield tag
    host.remove_image(tag)


@pytest.fixture
def mark(host: DockerHost) -> Iterator[str]:
    """A mark for this test's containers; what carries it is gone when the test ends."""
    value = uuid.uuid4().hex[:12]
    yield value
    with _sdk() as client:
        for found in client.containers.list(all=True, filters={"label": f"{TEST_LABEL}={value}"}):
            found.remove(force=True, v=True)


@pytest.fixture
def deployment(mark: str) -> str:
    """A deployment's name that nobody else has."""
    return f"test-{mark}"


@pytest.fixture
def make_spec(stand_in_image: str, mark: str, deployment: str) -> SpecMaker:
    """Return a maker of specs: `make_spec(port=..., die_after_s=0, exit_code=7)`.

    `name` and `port` have defaults; every other keyword is an option of the stand-in.
    """

    def make(
        *, name: str | None = None, port: int | None = None, **options: object
    ) -> ContainerSpec:
        port = port or free_port()
        return _spec(stand_in_image, mark, name or deployment, port, _arguments(options))

    return make


@pytest.fixture
def foreign_container(stand_in_image: str, mark: str) -> Iterator[str]:
    """The id of a running container that carries none of sparkdeploy's own labels."""
    with _sdk() as client:
        made = client.containers.run(
            stand_in_image,
            entrypoint=["python3", "-c", "import time; time.sleep(600)"],
            name=f"foreign-{mark}",
            detach=True,
            network_mode="none",
            labels={TEST_LABEL: mark},
        )
        yield str(made.id)


def free_port() -> int:
    """Return a port of this suite's range on which nobody listens; the next call another one."""
    for _ in PORTS:
        port = PORTS[next(_port_numbers) % len(PORTS)]
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0 and _claim(port):
                return port
    raise AssertionError(f"no port of {PORTS} is free")


def _claim(port: int) -> bool:
    """Keep other sessions of these tests off a port until this one ends.

    A container takes most of a minute before it listens. The claim is a name of the kernel's, held
    by an open socket, so that nothing is left of a session that was killed.
    """
    if port in _claims:
        return True
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0sparkdeploy-test-port-{port}")
    except OSError:
        claim.close()
        return False
    _claims[port] = claim
    atexit.register(claim.close)
    return True


def model_at(port: int) -> ServedModel:
    """Return the server on a port of this machine."""
    return ServedModel(f"http://127.0.0.1:{port}")


def port_of(spec: ContainerSpec) -> int:
    """Return the port a spec serves on."""
    return int(spec.labels[labels.PORT])


def until(condition: Callable[[], bool], *, timeout_s: float = DEADLINE_S) -> None:
    """Wait for a condition; fail when it does not come true in time."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {timeout_s} s"
        time.sleep(0.02)


def patiently(duration_s: float) -> float:
    """Return how long that may take here and now: longer where others load the machine.

    Five times as long at the least: the load is an average and follows what happens by a minute.
    """
    return duration_s * max(5.0, 2 * os.getloadavg()[0] / (os.cpu_count() or 1))


def start_serving(host: DockerHost, spec: ContainerSpec) -> str:
    """Create and start a container and wait until it answers; return its id."""
    container_id = host.create(spec)
    host.start(container_id)
    with model_at(port_of(spec)) as model:
        until(model.is_healthy)
    return container_id


def crashes_in(folder: Path) -> list[Path]:
    """Return the crash folders, oldest first."""
    return sorted(folder.iterdir()) if folder.is_dir() else []


@contextlib.contextmanager
def _sdk() -> Iterator[docker.DockerClient]:
    client = docker.from_env()
    try:
        yield client
    finally:
        client.close()


def _arguments(options: dict[str, object]) -> list[str]:
    arguments = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            arguments.append(flag)
        elif value is not None and value is not False:
            arguments += [flag, str(value)]
    return arguments


def _spec(image: str, mark: str, deployment: str, port: int, arguments: list[str]) -> ContainerSpec:
    return ContainerSpec(
        name=f"sparkdeploy-{deployment}",
        image=image,
        entrypoint=("python3", SERVER),
        command=("--port", str(port), *arguments),
        env={"STAND_IN_TOKEN": "not-to-be-kept"},
        mounts=(),
        user="65532:65532",
        gpus="none",
        tmpfs={"/tmp": "rw,exec,nosuid,nodev,mode=1777"},
        shm_size_bytes=64 << 20,
        labels={
            labels.KIND: "container",
            labels.DEPLOYMENT: deployment,
            labels.RECIPE: "stand-in",
            labels.PORT: str(port),
            labels.SERVED_NAME: "stand-in",
            TEST_LABEL: mark,
        },
    )
