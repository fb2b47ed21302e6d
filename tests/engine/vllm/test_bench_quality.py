"""`bench quality` on a served twin whose LM head is right, wrong on purpose, and too coarse."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import requests

from sparkdeploy import labels
from sparkdeploy.commands.request import Request, resolve
from sparkdeploy.commands.up import Extent, up
from sparkdeploy.deploy.prepare import prepare_folders
from sparkdeploy.node.container import Mount
from sparkdeploy.node.node import Nodes, node_behind
from sparkdeploy.plan.container import Deployment
from sparkdeploy.plan.draft import draft_plan
from sparkdeploy.settings import load_settings
from tests.engine.conftest import TEST_LABEL, free_port, model_at, until
from tests.engine.vllm.twin_user import TWIN_RECIPE, twin_user, unique_name

if TYPE_CHECKING:
    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.server.client import ServedModel
    from tests.engine.program import Program

pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(1200),
    pytest.mark.runs("bench", "checkpoint"),
]

SWAPS = Path(__file__).parents[1] / "inside" / "plugin_checks" / "head_swaps.py"
HEADS = ("bf16", "loaded", "shifted", "coarse")
# A recipe may ask for neither: both run code of one's own choice in the container.
EXTENSION = ("--worker-extension-cls", "head_swaps.HeadSwaps")
DEVELOPMENT = {"VLLM_SERVER_DEV_MODE": "1", "PYTHONPATH": "/test/swaps"}


@dataclass(frozen=True)
class Captures:
    """What the one server said with each of its heads."""

    program: Program
    folder: Path

    def compare(self, head: str, *options: str) -> tuple[int, dict[str, Any]]:
        """Hold a head against the untouched one; return the exit code and the report."""
        sides = (str(self.folder / f"{name}.json") for name in ("bf16", head))
        done = self.program.run("bench", "quality", *sides, "--gate", "--json", *options)
        return done.returncode, json.loads(done.stdout)


@pytest.fixture(scope="module")
def captures(host: DockerHost, tmp_path_factory: pytest.TempPathFactory) -> Captures:
    """Serve once, and capture each head in turn: a start takes longer than all captures."""
    port = free_port()
    program = twin_user(tmp_path_factory.mktemp("quality"), port=port)
    container_id = start(host, program.root)
    try:
        with model_at(port) as model:
            until(lambda: is_serving(host, container_id, model), timeout_s=600)
        for head in HEADS:
            swap_head(port, head)
            file = program.root / f"{head}.json"
            options = ("--texts", "3", "--tokens", "16", "--save", str(file))
            done = program.run("bench", "quality", "--url", f"http://127.0.0.1:{port}", *options)
            assert done.returncode == 0, done.stderr
    finally:
        host.remove(container_id)
    return Captures(program, program.root)


def start(host: DockerHost, root: Path) -> str:
    """Start v2 on a twin, as `up` would, with the exchangeable head mounted; return the id."""
    name = unique_name("quality")
    settings = replace(
        load_settings(),
        config_dir=root / "config",
        state_dir=root / "state",
        data_dir=root / "data",
        cache_dir=root / "cache",
    )
    request = Request(TWIN_RECIPE, (), Deployment(name))
    resolved = resolve(request, settings)
    up(resolved, request, settings, extent=Extent.PREPARE, consent=lambda _question: True)
    nodes = Nodes(node_behind("here", host))
    plan = draft_plan(resolved, settings, nodes, request.deployment)
    spec = plan.head.spec
    assert spec is not None
    prepare_folders(plan, nodes)
    mount = Mount(str(_readable_copy(SWAPS, root / "swaps")), "/test/swaps")
    spec = replace(
        spec,
        name=f"sparkdeploy-{name}",
        mounts=(*spec.mounts, mount),
        command=(*spec.command, *EXTENSION),
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


def swap_head(port: int, head: str) -> None:
    """Call the worker extension, which vLLM serves only in its development mode."""
    answer = requests.post(
        f"http://127.0.0.1:{port}/collective_rpc",
        json={"method": "swap_head", "args": [head]},
        timeout=120,
    )
    expected = "torch.bfloat16" if head == "bf16" else "torch.int8"
    assert answer.json() == {"results": [expected]}, answer.text


def _readable_copy(file: Path, folder: Path) -> Path:
    """A clone may be private to its owner; the container's user is another one."""
    folder.mkdir()
    shutil.copy(file, folder)
    (folder / file.name).chmod(0o644)
    folder.chmod(0o755)
    return folder


def test_the_right_int8_head_passes(captures: Captures) -> None:
    code, report = captures.compare("loaded")
    assert code == 0
    assert report["gate"] == {"passed": True, "failures": []}
    assert report["top1_agreement"]["value"] == 1.0
    assert all(item["first_difference"] is None for item in report["greedy"])


def test_a_head_with_its_scales_a_row_off_is_found(captures: Captures) -> None:
    code, report = captures.compare("shifted")
    assert code == 8
    assert report["top1_agreement"]["high"] < 0.97
    assert report["mean_kl_nats"]["low"] > 0.01
    assert any(item["first_difference"] is not None for item in report["greedy"])


def test_four_bits_are_found_by_drift_where_wide_margins_hide_them(captures: Captures) -> None:
    """The twin's text is decided by margins that four bits do not close."""
    _, right = captures.compare("loaded")
    limit = ("--max-drift", str(4 * right["drift_nats"]["value"]))
    assert captures.compare("loaded", *limit)[0] == 0
    assert captures.compare("coarse")[0] == 0
    code, report = captures.compare("coarse", *limit)
    assert code == 8
    assert [text.split()[0] for text in report["gate"]["failures"]] == ["drift"]
