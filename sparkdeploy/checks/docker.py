"""The Docker Engine and sparkdeploy's containers."""

import shlex
from collections.abc import Iterator, Mapping, Sequence

from sparkdeploy.checks.report import Finding, fail, not_seen, ok, warn
from sparkdeploy.node.container import KEPT_MARK, REPLACED_SUFFIX, ContainerFact, ListedContainer
from sparkdeploy.node.reports import DEFAULT_ADDRESS, EngineInfo
from sparkdeploy.units import format_bytes

INSTALL_RUNTIME = (
    "sudo apt-get install nvidia-container-toolkit && "
    "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"
)
LOW_DISK_BYTES = 20 * 10**9
"""Less than one engine's image and its build take (docs/figures/engines.md)."""


def check_engine(info: EngineInfo | None, failure: str, fix: str | None) -> Finding:
    if info is None:
        return fail("docker.engine", failure or "docker does not answer", fix or "start docker")
    seen = f"Docker Engine {info.version} on {info.architecture}"
    if info.has_containerd_store:
        seen += ", images in containerd's store"
    return ok("docker.engine", seen)


def check_architecture(engine: str, processor: str | None) -> Finding:
    check = "docker.architecture"
    if processor is None:
        return not_seen(check, "`uname -m` did not answer")
    if engine == processor:
        return ok(check, f"images are for {engine}, like this machine")
    seen = f"the Docker Engine and its images are for {engine}, and this machine is {processor}"
    fix = "if that is not intended, set `docker_host` in config.yaml or DOCKER_HOST"
    return warn(check, seen, fix)


def check_nvidia_runtime(*, has_runtime: bool, cdi_device: str = "") -> Finding:
    check = "docker.nvidia_runtime"
    if has_runtime:
        return ok(check, "containers reach the GPU by the nvidia runtime")
    if cdi_device:
        return ok(check, f"containers reach the GPU by CDI ({cdi_device})")
    seen = "docker has no nvidia runtime and no CDI device for containers with GPUs"
    return fail(check, seen, INSTALL_RUNTIME)


def check_context(info: EngineInfo) -> Finding:
    check, other = "docker.context", info.other_context
    if other is None:
        return ok(check, "Docker's own command asks the same engine")
    where = other.address or "an address that cannot be read"
    return warn(
        check,
        f"`docker` itself asks {where} ({other.name}), and sparkdeploy asks "
        f"{info.address or DEFAULT_ADDRESS}: `docker ps` does not show what is deployed",
        f"export DOCKER_HOST={shlex.quote(info.address or DEFAULT_ADDRESS)} shows it; or set "
        "docker_host in config.yaml to the other one",
    )


def check_proxy(info: EngineInfo) -> Finding:
    """Hold the proxy that fetches images against the one that builds and downloads get."""
    check, engine, client = "docker.proxy", info.proxy, info.client_proxy
    if client is None or client == engine:
        return ok(check, f"images and builds use {engine or 'no proxy'}")
    seen = f"the engine fetches images through {engine or 'no proxy'}, and builds and downloads "
    seen += f"use {client or 'no proxy'}"
    fix = "name one proxy in both: `docker info` has the engine's, config.json in ~/.docker and "
    fix += "https_proxy yours"
    if not client:
        fix = f"export https_proxy=http://{engine} before `sparkdeploy up`, if they need it too"
    elif not engine:
        fix = f'in /etc/docker/daemon.json: {{"proxies": {{"https-proxy": "http://{client}"}}}}; '
        fix += "then sudo systemctl restart docker"
    return warn(check, seen, fix)


def check_rootless(info: EngineInfo) -> Finding:
    check = "docker.rootless"
    if not info.is_rootless:
        return ok(check, "the engine may do what containers with GPUs need")
    return warn(
        check,
        "the engine is rootless: its containers have another network than this machine, so that "
        "no client reaches a server at 127.0.0.1, and they may not lock memory for RDMA",
        f"set `docker_host: {DEFAULT_ADDRESS}` in config.yaml, Docker's engine of the system",
    )


def check_cgroup(info: EngineInfo, links: int | None) -> Finding:
    """Check that GPUs stay when systemd sets its units' devices anew, by links in /dev/char."""
    check = "docker.cgroup"
    if info.cgroup_driver != "systemd" or not info.has_nvidia_runtime:
        return ok(check, "`systemctl daemon-reload` takes no GPU from a container")
    if links is None:
        return not_seen(check, "/dev/char cannot be listed")
    if links:
        return ok(check, "systemd knows NVIDIA's devices by /dev/char")
    return warn(
        check,
        "`systemctl daemon-reload` may take the GPU from running containers: /dev/char does not "
        "name NVIDIA's devices",
        "sudo nvidia-ctk system create-dev-char-symlinks --create-all (at each boot, by udev)",
    )


def check_low_disk(info: EngineInfo, free_bytes: int) -> Finding:
    """Check that Docker's own disk is not nearly full; the plan checks the size of a build."""
    check = "docker.disk"
    seen = f"{format_bytes(free_bytes)} free under {info.root_dir}"
    if free_bytes >= LOW_DISK_BYTES:
        return ok(check, seen)
    return warn(check, seen, "sparkdeploy clean, or `docker system df` to see what can be removed")


def check_endless_restarts(names: Sequence[str]) -> Finding:
    """Name GPU containers that restart for ever: each death leaks unified memory.

    After about 35 restarts a Spark no longer took ssh (eugr/spark-vllm-docker#257).
    """
    check = "docker.restarts"
    if not names:
        return ok(check, "no GPU container is restarted for ever")
    seen = f"{', '.join(names)}: restarted for ever, and every death costs memory"
    return warn(check, seen, f"docker update --restart=no {' '.join(names)}")


def deployment_findings(
    containers: Sequence[ListedContainer],
    *,
    booting: frozenset[str],
    attended: Mapping[str, str],
) -> Iterator[Finding]:
    """Yield our containers' findings, with who has a unit and which command waits for one."""
    serving = [item for item in containers if item.deployment]
    yield _check_state(serving, attended)
    yield _check_boot(serving, booting)


def _check_state(containers: Sequence[ListedContainer], attended: Mapping[str, str]) -> Finding:
    check = "deployments.state"
    # Kept containers are stopped.
    current = [item for item in containers if KEPT_MARK not in item.name]
    replaced = {item.deployment for item in current if item.name.endswith(REPLACED_SUFFIX)}
    halves = sorted(replaced - attended.keys())
    if halves:
        # Only the machine that heads a deployment may finish or revert it.
        parts = (it for it in current if it.deployment == halves[0] and it.rank > 0)
        place = next((f"on {it.nodes[0]}: " for it in parts if it.nodes), "")
        return warn(
            check,
            f"{', '.join(halves)}: half replaced, and no command waits for it (an `up` was "
            "interrupted or detached; the same `up` waits again)",
            f"{place}sparkdeploy rollback {halves[0]}",
        )
    stable = [item for item in current if item.deployment not in replaced]
    ended = [it for it in stable if isinstance(it, ContainerFact) and not it.is_running]
    dead = [item for item in ended if not item.is_stopped]
    if dead:
        named = ", ".join(f"{item.deployment} ({item.state} {item.exit_code})" for item in dead)
        return warn(check, f"not running: {named}", f"sparkdeploy logs {dead[0].deployment}")
    states = [f"{it.deployment} {'runs' if it.is_running else 'is stopped'}" for it in stable]
    states += [f"{it} is being replaced: {attended[it]} waits for it" for it in sorted(replaced)]
    return ok(check, ", ".join(states) or "nothing is deployed")


def _check_boot(containers: Sequence[ListedContainer], booting: frozenset[str]) -> Finding:
    """A restart is never automatic: what should survive a reboot has a unit."""
    check = "deployments.boot"
    names = [item.deployment for item in containers if item.is_running]
    gone = [name for name in names if name not in booting]
    if not gone:
        return ok(check, "every deployment has a systemd unit" if names else "nothing to start")
    unit = "(`sparkdeploy export systemd` writes the unit)"
    return ok(check, f"{', '.join(gone)}: not started again after a reboot {unit}")
