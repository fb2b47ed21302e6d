"""What containers see of RDMA adapters, on machines whose adapters a library plays.

The containers, their users and devices are real, and so is ibv_devinfo; the kernel's and the
library's answers are made up (tests/verbs). No NCCL runs here: there is no GPU.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkdeploy.image.context import ContextFile, write_tar
from sparkdeploy.node.facts import architecture
from sparkdeploy.recipe.load import Library, load_engine
from sparkdeploy.settings import resources
from tests.cluster.conftest import Program, docker_of, give_only
from tests.cluster.machines import TWINS, Machine, cluster_section
from tests.engine.shipped_stages import shipped_stages
from tests.fakes.plans import made_stages
from tests.verbs import build_stand_in, build_stub

pytestmark = [
    pytest.mark.docker,
    # Two images, a library that is compiled, and adapters for both machines.
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.runs("cluster"),
]
ENGINE = "cuda-0.25"
ADAPTERS = ("rocep1s0f1", "roceP2p1s0f1")
DEVICES = "/dev/infiniband"
LIBRARIES = "/usr/lib/roce"
RECIPE = f"{{schema: 1, name: roce, title: over adapters, extends: v2, engine: {ENGINE}}}\n"
DOCKERFILE = f"""\
FROM {{base}}
RUN python3 -m venv --without-pip /opt/venv
COPY bin/ /usr/bin/
COPY lib/ {LIBRARIES}/
COPY broken/ /usr/lib/broken/
ENV LD_LIBRARY_PATH={LIBRARIES} STAND_IN_DEVICES={{devices}}
"""
RUNC = """\
# Even root may not raise limits where these tests run: runc gets what it is to start without them.
bundle=$(printf '%s\\n' "$@" | grep -A 1 -x -e --bundle | tail -n 1)
[ -z "$bundle" ] || python3 - "$bundle/config.json" <<'PY'
import json, sys
with open(sys.argv[1], "r+") as file:
    config = json.load(file)
    config["process"].pop("rlimits", None)
    file.seek(0)
    json.dump(config, file)
    file.truncate()
PY
exec /usr/sbin/runc "$@"
"""


def addresses(machine: Machine) -> dict[str, str]:
    """Each adapter's IPv4 address."""
    return {
        adapter: f"{prefix}.{machine.number}"
        for adapter, (_, prefix) in zip(ADAPTERS, TWINS, strict=True)
    }


def give_adapters(machine: Machine) -> None:
    """Let the kernel of a machine know both adapters, and have a device file for each."""
    folder = machine.own / "class"
    folder.mkdir()
    # Some of it cannot be read.
    subprocess.run(["cp", "-a", "/sys/class/.", str(folder)], check=False, capture_output=True)
    for (adapter, address), (interface, _) in zip(addresses(machine).items(), TWINS, strict=True):
        own = folder / "infiniband" / adapter
        (own / "device" / "net" / interface).mkdir(parents=True)
        gids = own / "ports" / "1" / "gids"
        types = own / "ports" / "1" / "gid_attrs" / "types"
        gids.mkdir(parents=True)
        types.mkdir(parents=True)
        (own / "ports" / "1" / "state").write_text("4: ACTIVE\n")
        mapped = "".join(f"{int(part):02x}" for part in address.split("."))
        for index, kind in enumerate(("IB/RoCE v1", "RoCE v2") * 2):
            gid = f"ffff:{mapped[:4]}:{mapped[4:]}" if index > 1 else "0000:0000:0001"
            (gids / str(index)).write_text(f"0000:0000:0000:0000:0000:{gid}\n")
            (types / str(index)).write_text(f"{kind}\n")
    machine.run(
        f"mount --bind {folder} /sys/class; mkdir -p {DEVICES}; mount -t tmpfs tmpfs {DEVICES}; "
        f"for n in 0 1; do mknod -m 666 {DEVICES}/uverbs$n c 1 3; done"
    )


def take_adapters(machine: Machine) -> None:
    machine.run(f"umount /sys/class {DEVICES}")


def build_image(machine: Machine, folder: Path) -> None:
    """Make what looks like the finished image of a CUDA engine there."""
    engine = load_engine(Library((resources() / "recipes",)), ENGINE)
    plugin = made_stages(engine, architecture=architecture())[-1]
    devices = ",".join(f"{adapter}={ip}" for adapter, ip in addresses(machine).items())
    text = DOCKERFILE.format(base=shipped_stages()[0].tag, devices=devices)
    program = shutil.which("ibv_devinfo")
    assert program is not None
    files = [
        ContextFile("Dockerfile", text.encode()),
        ContextFile("bin/ibv_devinfo", Path(program), 0o755),
        ContextFile("broken/libibverbs.so.1", b"no library"),
        *(
            ContextFile(f"lib/{path.relative_to(folder)}", path, 0o755)
            for path in folder.rglob("*.so*")
        ),
    ]
    with docker_of(machine) as host, tempfile.TemporaryFile() as context:
        write_tar(files, context)
        context.seek(0)
        events = list(host.build(context, tag=plugin.tag, build_args={}, image_labels={}))
    assert not [event.error for event in events if event.error], events[-3:]


@pytest.fixture(scope="module")
def roce(
    head: Machine, worker: Machine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Both machines with adapters, an image that can reach them, and a recipe that uses it."""
    if shutil.which("ibv_devinfo") is None:
        pytest.skip("ibv_devinfo is not installed (Debian's ibverbs-utils)")
    folder = build_stand_in(tmp_path_factory.mktemp("verbs"))
    build_stub(folder / "libibverbs" / "libmlx5-rdmav34.so")
    section = cluster_section((head, worker))
    for entry in section["nodes"]:  # type: ignore[attr-defined]
        for port, adapter in zip(entry["fabric"], ADAPTERS, strict=True):
            port["rdma"] = adapter
    config = head.own / "home" / "config"
    before = (config / "config.yaml").read_text()
    (config / "config.yaml").write_text(yaml.safe_dump({"cluster": section}))
    (config / "recipes").mkdir()
    (config / "recipes" / "roce.yaml").write_text(RECIPE)
    for machine in (head, worker):
        give_only(machine, shipped_stages()[:1])
        build_image(machine, folder)
        give_adapters(machine)
        machine.give_command("runc", RUNC)
    yield
    for machine in (head, worker):
        machine.take_command("runc")
        take_adapters(machine)
    (config / "config.yaml").write_text(before)


def check(program: Program, *settings: str) -> dict[str, Any]:
    """Return what is not well, or was not seen, by node and subject, but for the missing limit."""
    words = [word for setting in settings for word in ("--set", setting)]
    done = program.run("cluster", "check", "roce", *words, "--json")
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    limits = [it for it in found if it["check"] == "cluster.memlock"]
    assert all(it["verdict"] == "fail" for it in limits)
    assert all(it["seen"].endswith(", expected unlimited") for it in limits)
    objections = [it for it in found if it["verdict"] != "ok" and it not in limits]
    return {": ".join(it["seen"].split(": ")[:2]): it for it in objections}


@pytest.mark.usefixtures("roce")
def test_sound_adapters_are_seen_from_inside_the_containers(
    program: Program, head: Machine, worker: Machine
) -> None:
    assert check(program) == {}
    for machine in (head, worker):
        assert machine.run("docker ps -aq").split() == []


@pytest.mark.usefixtures("roce")
@pytest.mark.parametrize(
    ("setting", "subject", "value"),
    [
        ("LD_LIBRARY_PATH=/usr/lib/broken", "RDMA libraries of the image", "/usr/lib/broken/"),
        ("STAND_IN_FAULT=v1", "rocep1s0f1 GID 3", "RoCE v1 of 10.77.0.11"),
        ("STAND_IN_FAULT=down", "rocep1s0f1 in the container", "PORT_DOWN"),
    ],
)
def test_what_the_containers_cannot_do_is_named_with_its_node(
    program: Program, setting: str, subject: str, value: str
) -> None:
    found = check(program, f"serve.env.{setting}")
    assert found[f"spark-a: {subject}"]["seen"].startswith(f"spark-a: {subject}: {value}")
    assert found[f"spark-b: {subject}"]["verdict"] == "fail"
    assert found[f"spark-b: {subject}"]["fix"]


@pytest.mark.usefixtures("roce")
def test_device_files_that_the_containers_user_may_not_open_are_named(
    program: Program, worker: Machine
) -> None:
    worker.run(f"chmod 600 {DEVICES}/uverbs1")
    try:
        found = check(program)
    finally:
        worker.run(f"chmod 666 {DEVICES}/uverbs1")
    refused = found["spark-b: /dev/infiniband in the container"]
    assert (
        ": user 65532:65532 may not open /dev/infiniband/uverbs1: Permission denied, expected "
        in refused["seen"]
    )
    assert "spark-a: /dev/infiniband in the container" not in found
