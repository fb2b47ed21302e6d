"""The containers of a Docker Engine: made, watched and, when ours, removed."""

import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from docker.errors import APIError, DockerException
from docker.types import DeviceRequest, LogConfig
from docker.types import Mount as DockerMount
from docker.types import Ulimit as DockerUlimit
from requests.exceptions import JSONDecodeError, RequestException

from sparkdeploy import labels
from sparkdeploy.errors import NodeError
from sparkdeploy.node import reports
from sparkdeploy.node.connection import (
    CALL_TIMEOUT_S,
    SDK_ERRORS,
    DockerConnection,
    NotInDockerError,
    translated,
)
from sparkdeploy.node.container import (
    LOG_DRIVER,
    LOG_SIZE,
    ContainerFact,
    ContainerSpec,
    ListedContainer,
    NeighbourFact,
)
from sparkdeploy.node.reports import EngineInfo, environment, last_end_s, read_listed_container

FIRST_STOP_S = 1
REMOVAL_TIMEOUT_S = 30.0
REMOVAL_POLL_S = 0.1
_BEING_REMOVED = "is already in progress"
_BROKEN_STREAM = (
    *SDK_ERRORS,
    OSError,
    struct.error,  # the connection ended inside a frame's header
    # The SDK looks for the socket at the first read, and asks it for bytes at each one: of a
    # connection that ended or was closed before that, neither is there.
    AttributeError,
    ValueError,
)


class LogStream:
    """A log that is read in one thread and may be closed from another."""

    def __init__(self, stream: Any) -> None:  # noqa: ANN401 - the SDK's own stream
        self._stream = stream
        self._is_closed = False

    def __iter__(self) -> Iterator[bytes]:
        """Yield chunks until the container ends or the stream is closed."""
        try:
            yield from self._stream
        except _BROKEN_STREAM as error:
            if not self._is_closed:
                raise NodeError("the log broke off", detail=str(error)) from error

    def close(self) -> None:
        """End the iteration, also one that waits for bytes. Closing twice is fine."""
        if not self._is_closed:
            self._is_closed = True
            # Over ssh the SDK cannot close (the reading thread then ends with the container), and
            # of a connection that has just ended it finds no socket.
            with suppress(DockerException, OSError, AttributeError):
                self._stream.close()

    def release(self) -> None:
        """Close the connection beneath: for who opened the stream, once nobody reads any more."""
        # The SDK's own `close` only shuts the socket down: its file stays open until the garbage
        # collector finds it.
        self._stream._response.close()


class Containers(DockerConnection):
    def labelled_containers(self) -> tuple[ListedContainer, ...]:
        """Return every container with our label, also those that are not ours, from one list."""
        return tuple(map(read_listed_container, self._listed({"label": labels.DEPLOYMENT})))

    def own_containers(self, deployment: str = "") -> tuple[ListedContainer, ...]:
        """Return every container of one deployment, or of all, running or not, from one list."""
        wanted = f"{labels.DEPLOYMENT}={deployment}" if deployment else labels.DEPLOYMENT
        listed = map(read_listed_container, self._listed({"label": wanted}))
        return tuple(item for item in listed if item.is_own)

    def ended_checks(self) -> tuple[str, ...]:
        """Return the ids of what looked into images or machines for a command that was killed."""
        marks = [f"{labels.KIND}=container", f"{labels.ROLE}=check"]
        with translated("list containers"):
            filters = {"label": marks, "status": ["created", "exited", "dead"]}
            return tuple(item["Id"] for item in self._api.containers(all=True, filters=filters))

    def _listed(self, filters: dict[str, str] | None = None) -> list[dict[str, Any]]:
        with translated("list containers"):
            return list(self._api.containers(all=True, filters=filters))

    def find_container(self, reference: str) -> ContainerFact | None:
        """Return a container by name or id, ours or not, or None."""
        with suppress(NotInDockerError), translated(f"inspect container {reference}"):
            return reports.read_container(self._api.inspect_container(reference))
        return None

    def inspect(self, container_id: str) -> dict[str, Any]:
        with translated(f"inspect container {container_id[:12]}"):
            return dict(self._api.inspect_container(container_id))

    def mounted_from(self, container_id: str) -> tuple[str, ...]:
        """Return the host's paths that a container mounts; none when it has gone meanwhile."""
        mounts = []
        with suppress(NotInDockerError):
            mounts = self.inspect(container_id)["Mounts"]
        return tuple(str(mount["Source"]) for mount in mounts if mount.get("Source"))

    def images_in_use(self) -> set[str]:
        """Return the ids of the images of all containers, ours or not, running or not."""
        return {str(item["ImageID"]) for item in self._listed()}

    def always_restarted_gpu_containers(self) -> tuple[str, ...]:
        """Return the names of GPU containers, ours or not, that Docker restarts for ever."""
        records = (self.inspect(item["Id"]) for item in self._listed())
        return tuple(
            str(record["Name"]).lstrip("/")
            for record in records
            if reports.keeps_gpu_for_ever(record)
        )

    def neighbours(self) -> tuple[NeighbourFact, ...]:
        listed = ((read_listed_container(it), it) for it in self._listed({"status": "running"}))
        return tuple(
            NeighbourFact(fact.name, str(item.get("Image") or ""))
            for fact, item in listed
            if not fact.is_own
        )

    def create(self, spec: ContainerSpec) -> str:
        with translated(f"create container {spec.name}"):
            engine = self.info() if spec.gpus == "all" else None
            host_config = self._api.create_host_config(**_host_options(spec, engine))
            created = self._api.create_container(
                image=spec.image,
                name=spec.name,
                entrypoint=list(spec.entrypoint),
                command=list(spec.command),
                environment=environment(spec.env),
                user=spec.user,
                labels=dict(spec.labels),
                stop_signal="SIGTERM",
                host_config=host_config,
            )
        return str(created["Id"])

    def start(self, container_id: str) -> None:
        with translated(f"start container {container_id[:12]}"):
            self._api.start(container_id)

    def wait(self, container_id: str) -> None:
        """Return when a container does not run any more, however long that takes."""
        with translated(f"wait for container {container_id[:12]}"):
            self._api.wait(container_id, timeout=None)

    def stop(self, container_id: str, *, timeout_s: int = 30) -> None:
        """Stop a container: SIGTERM, then SIGKILL after the timeout. Stopped is fine."""
        # Twice: the first process of a container that has just been started may not have been there
        # for the first signal, and the kernel keeps none for it.
        with translated(f"stop container {container_id[:12]}"), suppress(APIError):
            self._api.kill(container_id, "SIGTERM")
            with suppress(RequestException):
                self._api.wait(container_id, timeout=FIRST_STOP_S)
        with translated(f"stop container {container_id[:12]}"):
            self._api.stop(container_id, timeout=timeout_s)

    def remove(self, container: str | ListedContainer) -> None:
        """Remove one container of ours, running or not; a foreign one is refused."""
        fact = self.find_container(container) if isinstance(container, str) else container
        if fact is None:
            return
        if fact.labels.get(labels.KIND) != "container":
            raise NodeError(f"container {fact.name} was not made by sparkdeploy; it stays")
        try:
            with suppress(NotInDockerError), translated(f"remove container {fact.name}"):
                self._api.remove_container(fact.container_id, force=True, v=True)
        except NodeError as error:
            if _BEING_REMOVED not in error.message:
                raise
            self._wait_until_gone(fact.container_id, error)

    def _wait_until_gone(self, container_id: str, error: NodeError) -> None:
        """A command that was killed may have asked for the removal; its name is free only after."""
        deadline_s = time.monotonic() + REMOVAL_TIMEOUT_S
        while self.find_container(container_id) is not None:
            if time.monotonic() >= deadline_s:
                raise error
            time.sleep(REMOVAL_POLL_S)

    def rename(self, container_id: str, name: str) -> None:
        with translated(f"rename container {container_id[:12]}"):
            self._api.rename(container_id, name)

    def logs(
        self,
        container_id: str,
        *,
        follow: bool = False,
        tail: int | None = None,
        this_run: bool | ContainerFact = False,
        timestamps: bool = False,
    ) -> Iterator[bytes]:
        """Return the output in chunks, oldest first; with `follow` until the container ends.

        `this_run`, or what its inspection said, leaves out what it wrote before its last start.
        """
        fact = self.find_container(container_id) if this_run is True else this_run or None
        since_s = last_end_s(fact) if fact is not None else None
        with translated(f"read the log of {container_id[:12]}"):
            stream = self._api.logs(
                container_id,
                stream=True,
                follow=follow,
                tail="all" if tail is None else tail,
                since=since_s,
                timestamps=timestamps,
            )
            try:
                yield from stream
            finally:
                LogStream(stream).release()

    @contextmanager
    def open_log(self, container_id: str) -> Iterator[LogStream]:
        """Follow a container's output from the start of its run; another thread may close it."""
        fact = self.find_container(container_id)
        since_s = last_end_s(fact) if fact is not None else None
        with translated(f"follow the log of {container_id[:12]}"):
            stream = self._api.logs(container_id, stream=True, follow=True, since=since_s)
        log = LogStream(stream)
        try:
            yield log
        finally:
            log.close()
            log.release()

    def memory_bytes(self, container_id: str) -> int | None:
        """Return the memory a running container takes without page cache; None when unknown."""
        stats: dict[str, Any] = {}
        # One that was removed a moment ago has none, and of one that ended a moment ago the engine
        # answers nothing at all.
        doing = f"measure container {container_id[:12]}"
        with suppress(NotInDockerError), translated(doing), suppress(JSONDecodeError):
            stats = self._api.stats(container_id, stream=False, one_shot=True)
        memory = stats.get("memory_stats") or {}
        if "usage" not in memory:
            return None
        details = memory.get("stats") or {}
        cached = details.get("total_inactive_file", details.get("inactive_file", 0))
        return max(int(memory["usage"]) - int(cached), 0)

    def exec(self, container_id: str, argv: Sequence[str]) -> tuple[int, str]:
        """Return a command's exit code and all output; it outlives a caller that is interrupted."""
        with translated(f"run {argv[0]} in container {container_id[:12]}"):
            made = self._api.exec_create(container_id, list(argv))
            output: bytes = self._api.exec_start(made["Id"])
            code = self._api.exec_inspect(made["Id"])["ExitCode"]
        return int(code or 0), output.decode(errors="replace")

    def run_once(
        self,
        image: str,
        command: Sequence[str],
        *,
        entrypoint: Sequence[str] = (),
        timeout_s: int = CALL_TIMEOUT_S,
    ) -> tuple[int, str]:
        """Run a command in a throw-away container without network; return exit code and output."""
        with translated(f"run {command[0]} in {image}"):
            created = self._api.create_container(
                image=image,
                command=list(command),
                entrypoint=list(entrypoint) or None,
                labels={labels.KIND: "container", labels.ROLE: "check"},
                host_config=self._api.create_host_config(network_mode="none"),
            )
            return self._run_and_remove(created["Id"], timeout_s)

    def run_to_end(self, spec: ContainerSpec, *, timeout_s: int) -> tuple[int, str]:
        container_id = self.create(spec)
        with translated(f"run {spec.name}"):
            return self._run_and_remove(container_id, timeout_s)

    def _run_and_remove(self, container_id: str, timeout_s: int) -> tuple[int, str]:
        try:
            self._api.start(container_id)
            code = int(self._api.wait(container_id, timeout=timeout_s)["StatusCode"])
            output = self._api.logs(container_id).decode(errors="replace")
        finally:
            self._api.remove_container(container_id, force=True, v=True)
        return code, output


def _host_options(spec: ContainerSpec, engine: EngineInfo | None) -> dict[str, Any]:
    """Return the rest of a container's description; `engine` is needed for GPUs."""
    request = DeviceRequest(count=-1, capabilities=[["gpu"]])
    if engine is not None and engine.cdi_device and not engine.has_nvidia_runtime:
        request = DeviceRequest(driver="cdi", device_ids=[engine.cdi_device])
    gpus = [request] if spec.gpus == "all" else None
    return {
        # Mounts rather than binds: a path may hold a colon, and a missing source is an error
        # instead of a new folder that belongs to root.
        "mounts": [
            DockerMount(mount.target, mount.source, type="bind", read_only=mount.mode == "ro")
            for mount in spec.mounts
        ],
        "network_mode": spec.network,
        "cap_drop": list(spec.cap_drop),
        "cap_add": list(spec.cap_add) or None,
        "security_opt": list(spec.security_options),
        "read_only": spec.read_only_root,
        "tmpfs": dict(spec.tmpfs),
        "shm_size": spec.shm_size_bytes,
        "ulimits": [
            DockerUlimit(name=limit.name, soft=limit.value, hard=limit.value)
            for limit in spec.ulimits
        ],
        "devices": list(spec.devices) or None,
        "device_requests": gpus,
        "restart_policy": {"Name": spec.restart_policy},
        "log_config": LogConfig(type=LOG_DRIVER, config=LOG_SIZE),
    }
