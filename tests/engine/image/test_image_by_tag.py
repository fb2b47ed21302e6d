"""Images by tag, from a real registry: pinned once, kept, moved when it is asked for."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import pytest

from sparkdeploy.image.stages import UPPERMOST_FIRST
from sparkdeploy.node.host import DockerHost
from sparkdeploy.recipe.image_pins import ImageLock
from tests.engine.conftest import free_port
from tests.engine.image.named_vllm import SITE, with_vllm
from tests.engine.lab_registry import PASSWORD, USER, LabRegistry
from tests.engine.program import Program
from tests.engine.small_python import small_python

pytestmark = [pytest.mark.timeout(900), pytest.mark.runs("plan", "up", "image")]
ENGINE = """\
schema: 1
name: {name}
title: an image of others
kind: image
vllm: 0.25.1
device: cpu
"""
RECIPE = """\
schema: 1
name: tagged
title: by tag
engine: {engine}
image: {image}
model: {{path: {model}, repo: test/stand-in}}
serve: {{port: {port}}}
limits: {{memory_floor_gib: 0.5}}
"""


@pytest.fixture(scope="module")
def registry_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("registry-data")


@pytest.fixture
def registry(tmp_path: Path, registry_data: Path) -> Iterator[LabRegistry]:
    made = LabRegistry(tmp_path / "registry", registry_data, free_port())
    yield made
    made.stop()


@dataclass
class Lab:
    """One user's folders with a recipe whose image is a tag of the registry."""

    program: Program
    registry: LabRegistry
    base: str
    engine: str

    @property
    def tag(self) -> str:
        return f"{self.registry.address}/lab/vllm:v1"

    def push(self, version: str = "0.25.1", note: str = "one", **login: str) -> None:
        """Build a vLLM in name only, and put it under the tag; nothing of it stays here."""
        with contextlib.closing(docker.from_env()) as client:
            client.images.build(fileobj=self.source(version, note), tag=self.tag, rm=True)
            said = client.images.push(self.tag, auth_config=login or None)
            assert '"error"' not in said, said
            client.images.remove(self.tag)

    def source(self, version: str, note: str) -> io.BytesIO:
        dockerfile = f"FROM {self.base}\n{with_vllm(version, None)}\nLABEL note={note}\n"
        return io.BytesIO(dockerfile.encode())

    def up(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.program.run("up", "tagged", "--prepare", "--yes", *words)

    def pinned(self) -> str:
        pin = ImageLock(self.program.root / "state").pin_of(self.tag)
        assert pin is not None
        return pin.image

    def plan(self) -> dict[str, Any]:
        told: dict[str, Any] = self.program.answer("plan", "tagged")
        return told


@pytest.fixture
def lab(
    host: DockerHost, python_base_image: str, tmp_path: Path, registry: LabRegistry
) -> Iterator[Lab]:
    recipes = tmp_path / "config" / "recipes"
    (recipes / "engines").mkdir(parents=True)
    engine = f"lab-{uuid.uuid4().hex[:8]}"
    (recipes / "engines" / f"{engine}.yaml").write_text(ENGINE.format(name=engine))
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    # Nobody reads it; `up` refuses a folder without weights.
    (model / "model.safetensors").touch()
    # Its layers are packed and pushed, which takes time by their size.
    made = Lab(Program(tmp_path), registry, small_python(host, python_base_image), engine)
    values = {"image": made.tag, "engine": engine, "model": model, "port": free_port()}
    (recipes / "tagged.yaml").write_text(RECIPE.format(**values))
    yield made
    for image in sorted(host.own_images(), key=lambda item: UPPERMOST_FIRST.get(item.stage, 4)):
        if image.engine == engine:
            for tag in image.tags:
                host.remove_image(tag)


def test_a_tag_is_pinned_once_and_moved_when_it_is_asked_for(lab: Lab) -> None:
    lab.registry.start()
    lab.push()
    assert lab.plan()["image"] == {"name": lab.tag, "pinned": None, "holds": {}}
    first = lab.up()
    assert first.returncode == 0, first.stderr
    assert "vLLM 0.25.1" in first.stderr
    digest = lab.pinned()
    held = lab.plan()
    assert (held["image"]["pinned"], held["image"]["holds"]["vllm"]) == (digest, "0.25.1")
    assert [(step["stage"], step["action"]) for step in held["images"]] == [
        ("engine", "reuse"),
        ("guard", "reuse"),
    ]
    lab.push(note="two")
    assert "nothing" in (lab.up().stderr + lab.up().stdout)
    assert lab.pinned() == digest
    moved = lab.up("--update-image")
    assert moved.returncode == 0, moved.stderr
    assert f"was {digest} since" in moved.stderr
    assert lab.pinned() != digest
    assert "is unchanged" in lab.up("--update-image").stderr
    lab.registry.stop()
    assert lab.up().returncode == 0
    gone = lab.up("--update-image")
    assert (gone.returncode, "the registry did not tell" in gone.stderr) == (5, True)


@pytest.mark.slow
def test_a_first_image_without_vllm_is_asked_for_again(lab: Lab) -> None:
    lab.registry.start()
    lab.push("0.33.0")
    assert lab.up().returncode == 5
    assert ImageLock(lab.program.root / "state").pin_of(lab.tag) is None
    lab.push()
    done = lab.up()
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_an_image_that_does_not_fit_leaves_the_tag_where_it_was(lab: Lab) -> None:
    lab.registry.start()
    lab.push()
    assert lab.up().returncode == 0
    digest = lab.pinned()
    lab.push("0.33.0")
    refused = lab.up("--update-image")
    assert refused.returncode == 5
    assert "it has vLLM 0.33.0, and the engine says 0.25.1" in refused.stderr
    assert lab.pinned() == digest
    assert lab.up().returncode == 0


def test_a_private_registry_is_asked_with_dockers_own_login(lab: Lab, tmp_path: Path) -> None:
    lab.registry.start(is_private=True)
    lab.push(username=USER, password=PASSWORD)
    refused = lab.up()
    assert refused.returncode == 5
    assert f"docker login {lab.registry.address}" in refused.stderr
    login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    config = tmp_path / "docker"
    config.mkdir()
    auths = {"auths": {lab.registry.address: {"auth": login}}}
    (config / "config.json").write_text(json.dumps(auths))
    lab.program = Program(lab.program.root, {"DOCKER_CONFIG": str(config)})
    done = lab.up()
    assert done.returncode == 0, done.stderr
    written = [path.read_text() for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert PASSWORD not in "".join([done.stdout, done.stderr, *written])
    assert login not in "".join([done.stdout, done.stderr, *written])


MOD = """\
set -e
python3 - <<'PY'
import pathlib, vllm
path = pathlib.Path(vllm.__file__)
path.write_text("patched = True\\n")
PY
test -e /usr/local/lib/python3.12/dist-packages/vllm/__init__.py
cp owl.jinja "$WORKSPACE_DIR/"
"""


def with_mod(lab: Lab, script: str, *more: str) -> subprocess.CompletedProcess[str]:
    folder = lab.program.root / "config" / "recipes" / "mods" / "fix"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.sh").write_text(script)
    (folder / "owl.jinja").write_text("{{ messages }}")
    return lab.up("--set", "mods=[{folder: mods/fix}]", *more)


def built(host: DockerHost, lab: Lab) -> dict[str, dict[str, Any]]:
    return {
        image.tags[0]: image.proof
        for image in host.own_images()
        if image.engine == lab.engine and image.stage == "mod" and image.tags
    }


@pytest.mark.slow
def test_a_mod_is_a_stage_that_is_made_again_when_it_changes(host: DockerHost, lab: Lab) -> None:
    lab.registry.start()
    lab.push()
    done = with_mod(lab, MOD)
    assert done.returncode == 0, done.stderr
    ((tag, proof),) = built(host, lab).items()
    changed = {f"{SITE}/vllm/__init__.py", "/workspace/owl.jinja"}
    assert (set(proof["changed"]), proof["count"]) == (changed, 2)
    code, _ = host.run_once(
        tag, ["-I", "-c", "import vllm; assert vllm.patched"], entrypoint=["/opt/venv/bin/python"]
    )
    assert code == 0
    assert "image mod" not in with_mod(lab, MOD).stderr
    assert "image mod" in with_mod(lab, MOD + "true\n").stderr
    assert len(built(host, lab)) == 2


def test_a_loaded_image_is_taken_by_its_id_where_no_registry_answers(
    lab: Lab, tmp_path: Path
) -> None:
    carried, name = f"lab-carried:{lab.engine}", f"{lab.tag.removesuffix(':v1')}@sha256:{'0' * 64}"
    recipe = tmp_path / "config" / "recipes" / "tagged.yaml"
    recipe.write_text(recipe.read_text().replace(lab.tag, name))
    with contextlib.closing(docker.from_env()) as client:
        client.images.build(fileobj=lab.source("0.25.1", lab.engine), tag=carried, rm=True)
        archive = b"".join(client.images.get(carried).save(named=True))
        client.images.remove(carried)
        assert lab.up().returncode == 5
        (loaded,) = client.images.load(archive)
        try:
            assert lab.up("--image-id", "sha256:" + "1" * 64).returncode == 5
            image_id = loaded.id or ""
            taken = lab.up("--image-id", image_id)
            assert taken.returncode == 0, taken.stderr
            pin = ImageLock(tmp_path / "state").pin_of(name)
            assert pin is not None
            assert pin.image == image_id
            assert lab.up().returncode == 0
        finally:
            client.images.remove(carried)
