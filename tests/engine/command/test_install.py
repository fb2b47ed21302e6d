"""install.sh on a pristine Debian, in a container made from the distribution's own packages."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkdeploy import __version__
from sparkdeploy.settings import CA_BUNDLE_VARIABLES, PROXY_VARIABLES
from tests.engine.command.dists import CHECKOUT, UV, build_dists, the_only
from tests.engine.turns import vllm_turn

CHECKED_OUT = f"--volume={CHECKOUT}:/checkout:ro"
SYSTEM_CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
PACKAGES = "python3,python3-venv,ca-certificates"
# Bits of capabilities.h that a nested Docker Engine needs; SYS_RESOURCE is not everywhere to give.
CAPABILITIES = {
    "NET_ADMIN": 12,
    "NET_RAW": 13,
    "SYS_ADMIN": 21,
    "SYS_RESOURCE": 24,
    "SYS_PTRACE": 19,
}
SOMEBODY = ("--user=1000:1000", "--env=HOME=/tmp")
PASSED_ON = (
    "PIP_INDEX_URL",
    "UV_DEFAULT_INDEX",
    "PIP_FIND_LINKS",
    "PIP_TRUSTED_HOST",
    *PROXY_VARIABLES,
)

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]


def docker(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the docker client and return what it said, whatever its exit code."""
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def debian_image() -> str:
    """The distribution's own packages and nothing else; kept for the next run."""
    tag = f"sparkdeploy-test/bare-debian:{zlib.crc32(PACKAGES.encode()):08x}"
    if docker("image", "inspect", tag).returncode == 0:
        return tag
    with subprocess.Popen(
        ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES}", "bookworm", "-"],
        stdout=subprocess.PIPE,
    ) as bootstrap:
        subprocess.run(
            ["docker", "import", "-", tag], stdin=bootstrap.stdout, check=True, capture_output=True
        )
    if bootstrap.returncode != 0:
        docker("rmi", tag)
        pytest.fail("mmdebstrap made no Debian")
    return tag


@pytest.fixture
def machine(debian_image: str) -> Iterator[str]:
    """Start a bare machine with the checkout at /checkout, read-only; return its name."""
    with _running(debian_image, [CHECKED_OUT]) as name:
        yield name


@pytest.fixture
def nesting_machine(debian_image: str) -> Iterator[str]:
    """Start a bare machine on which a Docker Engine of its own can run."""
    with _running(debian_image, [*_nesting(), CHECKED_OUT]) as name:
        yield name


def _nesting() -> list[str]:
    may = int(re.findall(r"CapBnd:\s*(\w+)", Path("/proc/self/status").read_text())[0], 16)
    options = [f"--cap-add={name}" for name, bit in CAPABILITIES.items() if may >> bit & 1]
    options += ["--security-opt=seccomp=unconfined", "--security-opt=systempaths=unconfined"]
    options += ["--security-opt=apparmor=unconfined", "--device-cgroup-rule=a *:* rwm"]
    # Overlays cannot be stacked on the container's own root: the engine gets a volume.
    return [*options, "--volume=/var/lib/docker", "--volume=/sys/fs/cgroup:/sys/fs/cgroup"]


@contextlib.contextmanager
def _running(image: str, options: list[str]) -> Iterator[str]:
    name = f"lab-install-{uuid.uuid4().hex[:12]}"
    options = list(options)
    named = (os.environ.get(variable) for variable in CA_BUNDLE_VARIABLES)
    bundle = next((Path(value) for value in named if value), SYSTEM_CA_BUNDLE)
    if bundle.is_file():
        options += [f"--volume={bundle}:/ca.pem:ro", "--env=PIP_CERT=/ca.pem"]
        options += ["--env=SSL_CERT_FILE=/ca.pem"]
    options += [f"--env={variable}" for variable in PASSED_ON if variable in os.environ]
    for folder in os.environ.get("PIP_FIND_LINKS", "").split():
        options += [f"--volume={folder}:{folder}:ro"]
    try:
        started = docker("run", "--detach", f"--name={name}", *options, image, "sleep", "3600")
        assert started.returncode == 0, started.stderr
        yield name
    finally:
        docker("rm", "--force", "--volumes", name)


@pytest.mark.slow
def test_the_command_works_on_a_pristine_machine_and_again_does_nothing(machine: str) -> None:
    first = docker("exec", machine, "/checkout/install.sh", "--tool-only")
    assert first.returncode == 0, first.stderr
    version = docker("exec", machine, "sparkdeploy", "--version")
    assert __version__ in version.stdout, version.stderr
    # What root has installed is every user's.
    listed = docker("exec", *SOMEBODY, machine, "sparkdeploy", "list")
    assert listed.returncode == 0, listed.stderr
    assert "mtp-2" in listed.stdout
    second = docker("exec", machine, "/checkout/install.sh", "--tool-only")
    assert second.returncode == 0, second.stderr
    assert "from these very sources already" in second.stderr
    removed = docker("exec", machine, "/checkout/install.sh", "--uninstall")
    assert removed.returncode == 0, removed.stderr
    for left in ("/usr/local/bin/sparkdeploy", "/opt/sparkdeploy"):
        assert docker("exec", machine, "test", "-e", left).returncode == 1


@pytest.mark.slow
def test_a_user_on_a_machine_without_docker_is_told_all_commands(machine: str) -> None:
    result = docker("exec", *SOMEBODY, machine, "/checkout/install.sh")
    assert result.returncode == 4
    assert "sudo apt-get install -y --no-install-recommends docker.io" in result.stderr
    looked = docker("exec", *SOMEBODY, machine, "/tmp/.local/bin/sparkdeploy", "setup")
    assert looked.returncode == 4
    said = looked.stdout + looked.stderr
    assert (
        "sudo apt-get update && sudo apt-get install -y --no-install-recommends docker.io" in said
    )


@pytest.mark.slow
@pytest.mark.timeout(4800)
def test_a_rehearsal_on_a_bare_machine_ends_with_an_answer(nesting_machine: str) -> None:
    """Engine, images, twin and vLLM, cold: the promise of `./install.sh --rehearse v2`."""
    with vllm_turn():
        started_s = time.monotonic()
        result = docker("exec", nesting_machine, "/checkout/install.sh", "--rehearse", "v2")
    print(f"cold rehearsal from a bare machine: {time.monotonic() - started_s:.0f} s")
    assert result.returncode == 0, result.stderr[-4000:]
    assert "LM head int8" in result.stdout


@pytest.mark.slow
@pytest.mark.timeout(4800)
def test_uvx_rehearses_on_a_bare_machine_without_a_checkout(
    debian_image: str, tmp_path: Path
) -> None:
    """From a wheel to an answer: `setup` brings what is missing, and no file of ours is beside."""
    build_dists(tmp_path)
    given = [f"--volume={tmp_path}:/dists:ro", f"--volume={UV}:/usr/local/bin/uv:ro"]
    uvx = ("uv", "tool", "run", "--from", f"/dists/{the_only(tmp_path, '*.whl').name}")
    with _running(debian_image, [*_nesting(), *given]) as name, vllm_turn():
        started_s = time.monotonic()
        ready = docker("exec", name, *uvx, "sparkdeploy", "setup", "--rehearsal", "--yes")
        assert ready.returncode == 0, ready.stdout + ready.stderr
        result = docker("exec", "--workdir=/tmp", name, *uvx, "sparkdeploy", "rehearse", "v2")
    print(f"cold rehearsal by uvx from a bare machine: {time.monotonic() - started_s:.0f} s")
    assert result.returncode == 0, result.stderr[-4000:]
    assert "LM head int8" in result.stdout
