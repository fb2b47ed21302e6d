"""A secret of every kind is planted, and looked for everywhere somebody else could read it."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sparkdeploy.deploy.evidence import save_evidence
from sparkdeploy.node.host import DockerHost
from sparkdeploy.plan.container import UNPRIVILEGED_ID, Deployment, HostFolders
from sparkdeploy.recipe.load import Library, load_recipe
from sparkdeploy.settings import resources
from tests.engine.conftest import DEADLINE_S, TEST_LABEL, free_port, model_at, until
from tests.engine.program import Program
from tests.engine.small_python import small_python
from tests.engine.stand_in.engine import build_image
from tests.fakes.http_server import TableServer, serving
from tests.fakes.plans import model_fact
from tests.launching import container_spec

pytestmark = [
    pytest.mark.docker,
    pytest.mark.runs("ask", "diagnose", "doctor", "export", "logs", "plan", "status"),
]

KEY = "planted-api-key-7d1f"
PLANTED = {
    "HF_TOKEN": "hf_planted7d1fToken",
    "VLLM_API_KEY": "planted-vllm-key-7d1f",
    "https_proxy": "http://user:planted-proxy-7d1f@127.0.0.1:9",
    "PIP_EXTRA_INDEX_URL": "https://user:planted-index-7d1f@packages.invalid/simple",
}
WORDS = (KEY, "hf_planted7d1fToken", "planted-vllm-key-7d1f", "planted-proxy", "planted-index")


def found_in(text: str) -> list[str]:
    return [word for word in WORDS if word in text]


@pytest.fixture(scope="module")
def guarded_image(host: DockerHost, python_base_image: str) -> str:
    """The stand-in beneath the real guard, which hands the key on."""
    return build_image(host, small_python(host, python_base_image))


@pytest.fixture
def make_public(
    host: DockerHost, guarded_image: str, mark: str, deployment: str, tmp_path: Path
) -> Iterator[Callable[..., str]]:
    """Starts a public deployment in the product's shape, with a key, and returns its id."""
    made: list[str] = []

    def make(stand_in: str, port: int) -> str:
        key = tmp_path / "state" / "keys" / deployment
        key.parent.mkdir(parents=True, mode=0o700)
        key.write_text(KEY + "\n")
        key.chmod(0o600)
        os.chown(key, UNPRIVILEGED_ID, UNPRIVILEGED_ID)
        cache = tmp_path / "cache"
        cache.mkdir()
        shape = container_spec(
            load_recipe(
                Library((resources() / "recipes",)),
                "v2",
                [f"serve.port={port}", "limits.memory_floor_gib=0.5"],
            ),
            model_fact(treated=False, root=tmp_path, files="", owner_uid=0, owner_gid=0),
            image=guarded_image,
            deployment=Deployment(deployment, is_public=True),
            folders=HostFolders(cache=cache, key_file=key),
        )
        spec = replace(
            shape,
            env={**shape.env, "STAND_IN": stand_in},
            gpus="none",
            ulimits=(),
            labels={**shape.labels, TEST_LABEL: mark},
        )
        made.append(host.create(spec))
        host.start(made[-1])
        return made[-1]

    yield make
    for container_id in made:
        host.remove(container_id)


@pytest.fixture
def deployed(make_public: Callable[..., str]) -> str:
    port = free_port()
    container_id = make_public("--log cpu-0.32-mtp", port)
    with model_at(port) as model:
        until(model.is_healthy)
    return container_id


def test_what_others_can_read_holds_no_secret(
    host: DockerHost,
    deployed: str,
    deployment: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in PLANTED.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "config").mkdir()
    index = f"index_url: https://u:{KEY}@host/simple\n"
    (tmp_path / "config" / "config.yaml").write_text(index)
    program = Program(tmp_path, PLANTED)
    places = {
        "inspect": json.dumps(host.inspect(deployed)),
        "history": output("docker", "history", "--no-trunc", host.inspect(deployed)["Image"]),
        "processes": output("ps", "-eo", "args"),
        "log": b"".join(host.logs(deployed)).decode(errors="replace"),
    }
    for command in (
        ("plan", "v2", "--public", "--json"),
        ("-v", "doctor", "v2", "--json"),
        ("status", "--json"),
        ("export", "systemd", "v2", "--public"),
        ("logs", deployment),
    ):
        done = program.run(*command)
        places[" ".join(command)] = done.stdout + done.stderr
    plan = json.loads(program.run("plan", "v2", "--public", "--json").stdout)
    folder = save_evidence(
        host,
        deployed,
        tmp_path / "state" / "crashes",
        deployment=deployment,
        details={"plan": plan},
    )
    assert (folder / "plan.json").is_file()
    found: dict[str, str] = {}
    for subject in (deployment, str(folder)):
        bundle = tmp_path / f"bundle-{len(places)}.tar.gz"
        done = program.run("diagnose", subject, "--output", str(bundle))
        assert done.returncode == 0, done.stderr
        places[f"diagnose {subject}"] = done.stdout + done.stderr
        found = packed(bundle)
        assert {"doctor.json", "status.json", "config.yaml"} <= {*found}
        assert bundle.stat().st_mode & 0o077 == 0
        places |= {f"{bundle.name} {name}": text for name, text in found.items()}
    assert {f"crash/{name}" for name in ("00-root-cause.txt", "guard.json", "plan.json")} <= {
        *found
    }
    assert json.loads(found["crash/versions.json"])["docker"] == host.info().version
    places |= {str(path): path.read_text(errors="replace") for path in files(tmp_path)}
    assert {place: words for place, text in places.items() if (words := found_in(text))} == {}
    assert len(places) > 30


def test_the_search_would_find_one(tmp_path: Path) -> None:
    (tmp_path / "crashes").mkdir()
    (tmp_path / "crashes" / "container.log").write_text(f"INFO api_key=['{KEY}']")
    assert [found_in(path.read_text()) for path in files(tmp_path)] == [[KEY]]


def test_the_key_is_in_use_all_the_same(host: DockerHost, deployed: str) -> None:
    guard = int(host.inspect(deployed)["State"]["Pid"])
    (server,) = Path(f"/proc/{guard}/task/{guard}/children").read_text().split()
    assert KEY in Path(f"/proc/{server}/environ").read_text()
    assert KEY not in Path(f"/proc/{guard}/environ").read_text()


def test_the_key_is_its_users_alone(host: DockerHost, deployed: str, tmp_path: Path) -> None:
    key = next((tmp_path / "state" / "keys").iterdir())
    assert key.stat().st_mode & 0o777 == 0o600
    mounts = {item["Destination"]: item for item in host.inspect(deployed)["Mounts"]}
    assert mounts["/run/sparkdeploy/key"]["RW"] is False


def files(folder: Path) -> list[Path]:
    """Every file below, without those that a secret was written into by its owner."""
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.parent.name not in {"keys", "config"}
    ]


def packed(bundle: Path) -> dict[str, str]:
    """The files of a bug report; what is compressed cannot be searched as it is."""
    with tarfile.open(bundle) as tar:
        members = {name: tar.extractfile(name) for name in tar.getnames()}
        return {
            name: file.read().decode(errors="replace")
            for name, file in members.items()
            if file is not None
        }


def output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_neither_key_nor_prompt_goes_to_another_listener(
    make_public: Callable[..., str], deployment: str, tmp_path: Path
) -> None:
    """While a server loads, another user of the machine can listen on its port."""
    with serving(TableServer()) as other:
        other.answers["/health"] = (200, "")
        make_public("--wait-for never", other.port)
        done = Program(tmp_path).run("ask", deployment, "planted-prompt")
    assert done.returncode == 7
    assert "another program" in done.stderr
    assert {*other.asked} == {("/health", None, None)}
