"""A served twin whose worker has methods of a test's own, which change its weights under way."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import requests

from sparkdeploy import labels
from sparkdeploy.deploy.prepare import prepare_folders
from sparkdeploy.deploy.request import Request, resolve
from sparkdeploy.deploy.up import Extent, UpOptions, up
from sparkdeploy.node.container import Mount
from sparkdeploy.node.host import DockerHost
from sparkdeploy.node.node import Nodes, node_behind
from sparkdeploy.plan.container import Deployment
from sparkdeploy.plan.make import draft_plan
from sparkdeploy.server.client import ServedModel
from sparkdeploy.settings import load_settings
from tests.engine.conftest import TEST_LABEL
from tests.engine.vllm.twin_user import TWIN_RECIPE, unique_name

MOUNT = "/test/extension"
DEVELOPMENT = {"VLLM_SERVER_DEV_MODE": "1", "PYTHONPATH": MOUNT}


@dataclass(frozen=True)
class Extension:
    """A file of a worker's further methods, and its class."""

    file: Path
    class_name: str

    @property
    def arguments(self) -> tuple[str, str]:
        """A recipe may ask for neither this nor for development: both run code of one's own."""
        return "--worker-extension-cls", f"{self.file.stem}.{self.class_name}"


def start(host: DockerHost, root: Path, extension: Extension, *assignments: str) -> str:
    """Start v2 on a twin, as `up` would, with the extension mounted; return the id.

    `assignments` are those of `--set`.
    """
    name = unique_name("extended")
    settings = replace(
        load_settings(),
        config_dir=root / "config",
        state_dir=root / "state",
        data_dir=root / "data",
        cache_dir=root / "cache",
    )
    request = Request(TWIN_RECIPE, assignments, Deployment(name))
    resolved = resolve(request, settings)
    up(
        resolved,
        request,
        settings,
        confirm=lambda _question: True,
        options=UpOptions(Extent.PREPARE),
    )
    nodes = Nodes(node_behind("here", host))
    plan = draft_plan(resolved, settings, nodes, request.deployment)
    spec = plan.head.spec
    assert spec is not None
    prepare_folders(plan, nodes)
    mount = Mount(str(_readable_copy(extension.file, root / "extension")), MOUNT)
    spec = replace(
        spec,
        name=f"sparkdeploy-{name}",
        mounts=(*spec.mounts, mount),
        command=(*spec.command, *extension.arguments),
        env={**spec.env, **DEVELOPMENT},
        labels={labels.KIND: "container", labels.DEPLOYMENT: name, TEST_LABEL: name},
    )
    container_id = host.create(spec)
    host.start(container_id)
    return container_id


def is_serving(host: DockerHost, container_id: str, model: ServedModel) -> bool:
    """Say whether it answers; fail when it has ended."""
    found = host.find_container(container_id)
    assert found is not None
    assert found.is_running, b"".join(host.logs(container_id, tail=30)).decode(errors="replace")
    return model.is_healthy()


def call(port: int, method: str, *arguments: object) -> Any:
    """Call a method of the extension, which vLLM serves only in its development mode."""
    answer = requests.post(
        f"http://127.0.0.1:{port}/collective_rpc",
        json={"method": method, "args": list(arguments)},
        timeout=120,
    )
    assert answer.ok, answer.text
    return answer.json()["results"]


def _readable_copy(file: Path, folder: Path) -> Path:
    """A clone may be private to its owner; the container's user is another one."""
    folder.mkdir(exist_ok=True)
    shutil.copy(file, folder)
    (folder / file.name).chmod(0o644)
    folder.chmod(0o755)
    return folder
