"""Checkpoints of ours in other readers, and the plugin on real layers, inside the CPU engine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import docker
import pytest
from docker.errors import ContainerError

from sparkdeploy.checkpoint.contents import model_sizes, read_config
from sparkdeploy.checkpoint.conversion import Conversion
from sparkdeploy.checkpoint.fp8_shard import Order, fetch_shard
from sparkdeploy.checkpoint.overlay import build_overlay
from sparkdeploy.checkpoint.ranges import FolderRanges
from sparkdeploy.checkpoint.source import open_folder
from sparkdeploy.checkpoint.standalone import build_standalone
from sparkdeploy.checkpoint.tiny_model.build import build_tiny_fp8_model, build_tiny_model
from sparkdeploy.checkpoint.tiny_model.shape import TinyShape
from sparkdeploy.node.host import DockerHost
from tests.engine.conftest import TEST_LABEL
from tests.engine.inside.containers import FEW_CPU_SHARES, python_in
from tests.engine.shipped_stages import engine_image

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800), pytest.mark.usefixtures("host")]

RARE = {
    *(f"check_turboquant_{part}" for part in ("cuda", "kernel", "maths")),
    *(f"check_int4_{part}" for part in ("head", "maths", "shared")),
    *(
        *("check_any_checkpoint", "check_cpu_int4_linear", "check_dealt_rows", "check_draft_layer"),
        "check_finished",
    ),
    *("check_lora", "check_native", "check_prompt_log_probs"),
}
"""What few recipes have: kernels and layouts of their own; the run of slow tests holds them."""

READERS = """
import json, sys
from pathlib import Path
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoConfig, AutoTokenizer
folder = Path(sys.argv[1])
config = AutoConfig.from_pretrained(folder)
AutoTokenizer.from_pretrained(folder)
index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
seen = {}
for file in sorted(set(index.values())):
    with safe_open(folder / file, framework="pt") as opened:
        assert opened.metadata() == {"format": "pt"}, file
    seen.update({name: (tensor, file) for name, tensor in load_file(folder / file).items()})
assert {name: file for name, (_, file) in seen.items()} == index
fp8 = [name for name, (tensor, _) in seen.items() if tensor.dtype == torch.float8_e4m3fn]
scales = [seen[name + "_scale_inv"][0] for name in fp8]
assert all(torch.isfinite(scale.float()).all() and scale.min() > 0 for scale in scales)
print("opened", config.text_config.num_hidden_layers, "layers,", len(fp8), "FP8 weights")
"""


# What the readers are changes with an engine.
@pytest.mark.slow
def test_transformers_and_safetensors_open_the_standalone_checkpoint(
    host: DockerHost, mark: str, tmp_path: Path
) -> None:
    twin, fp8, out = tmp_path / "twin", tmp_path / "fp8", tmp_path / "standalone"
    build_tiny_model(twin, TinyShape(), seed=1)
    build_tiny_fp8_model(fp8, twin)
    order = Order(model_sizes(read_config(twin)), "lab", model=twin)
    shard = fetch_shard(FolderRanges(fp8), order, tmp_path / "shard", lambda _done, _total: None)
    build_standalone(
        open_folder(twin), shard, out, overwrite=False, on_progress=lambda _done, _total: None
    )
    (tmp_path / "readers.py").write_text(READERS)
    command = ["/lab/readers.py", "/lab/standalone"]
    output = python_in(engine_image(host), tmp_path, mark, command)
    assert output.strip().splitlines()[-1] == "opened 4 layers, 12 FP8 weights"


@pytest.mark.parametrize("is_rare", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_plugin_s_checks_hold_on_real_layers(
    host: DockerHost, mark: str, is_rare: bool, record_property: Callable[[str, object], None]
) -> None:
    """Dispatch, arithmetic, every FP8 mode, draft head, TurboQuant, and two ranks against one."""
    checks = Path(__file__).parent / "plugin_checks"
    every = sorted(checks.glob("check_*.py"))
    assert {file.stem for file in every} > RARE
    files = [file for file in every if (file.stem in RARE) is is_rare]
    written = sum(file.read_text().count("\ndef check_") for file in files)
    names = [f"{file.stem}." for file in files]
    output = python_in(engine_image(host), checks, mark, ["/lab/run_checks.py", *names])
    left_out = [line for line in output.splitlines() if line.startswith("left out: ")]
    for line in left_out:
        record_property("left out", line.removeprefix("left out: "))
    held = [line for line in output.splitlines() if line.startswith("ok ")]
    assert len(held) + len(left_out) == written > len(files) > 1, output
    assert len(left_out) < len(files)


@pytest.mark.slow
def test_without_the_plugin_vllm_refuses_the_overlay(
    host: DockerHost, mark: str, tmp_path: Path
) -> None:
    """The engine's stage is the image that is served, less the plugin."""
    twin, overlay = tmp_path / "twin", tmp_path / "m" / "ck" / "overlay"
    build_tiny_model(twin, TinyShape(), seed=1)
    build_overlay(open_folder(twin), Conversion(fp8_mode="online", lm_head="int8"), overlay)
    with contextlib.closing(docker.from_env()) as client, pytest.raises(ContainerError) as refused:
        client.containers.run(
            engine_image(host, stage="engine"),
            entrypoint=["/opt/venv/bin/vllm", "serve", str(overlay), "--enforce-eager"],
            # In its own place: the overlay's links lead to the twin beside it.
            volumes={str(tmp_path): {"bind": str(tmp_path), "mode": "ro"}},
            network_mode="none",
            environment={"HF_HUB_OFFLINE": "1", "HOME": "/tmp"},
            labels={TEST_LABEL: mark},
            remove=True,
            cpu_shares=FEW_CPU_SHARES,
        )
    said = str(refused.value)
    assert "Unknown quantization method: spark-hybrid" in said, said
