"""The stand-in as an engine of sparkdeploy's: `up` starts it like any other, in under a second.

The container is the real one: same spec, same guard as first process. Only `vllm` is another.
"""

from __future__ import annotations

import io
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

import sparkdeploy
from sparkdeploy import labels
from sparkdeploy.image.context import ContextFile, write_tar
from sparkdeploy.image.stages import Stage
from sparkdeploy.node.facts import architecture
from sparkdeploy.node.host import DockerHost
from sparkdeploy.recipe.image_pins import ImageContents, ImageLock, contents_adapter
from sparkdeploy.recipe.load import Library, load_engine
from sparkdeploy.settings import resources
from tests.engine.stand_in.image import FOLDER, RECORDED
from tests.fakes.plans import made_stages

ENGINE = """\
schema: 1
name: stand-in
title: a server that replays logs
kind: image
vllm: 0.25.1
device: cpu
image: {image}
"""
RECIPE = """\
schema: 1
name: standin
title: a stand-in
engine: stand-in
model: {{path: {model}, repo: test/stand-in}}
serve: {{port: {port}}}
backends: {{warn_only: [speculation]}}
limits: {{memory_floor_gib: 0.5, startup_timeout_s: 60}}
"""
DOCKERFILE = """\
FROM {base}
COPY stand_in/ /stand_in/
COPY plugin/ /usr/lib/python3/dist-packages/
RUN mkdir -p /opt/venv/bin && ln -s /usr/bin/python3 /opt/venv/bin/python \\
 && install -m 755 /stand_in/vllm.py /usr/local/bin/vllm \
 && python3 -m compileall -q /stand_in /usr/lib/python3/dist-packages/sparkdeploy_vllm
"""
REFERENCE = "sparkdeploy-test/stand-in-engine:1"
CONTENTS = ImageContents(
    vllm="0.25.1", torch=None, cuda=None, kernels=(), rdma_missing={}, release=None
)
"""What a look into the image would find; it takes seconds, and hundreds of tests start it."""
LOGS = ("cpu-0.32-mtp.log", "spark-0.33-mtp.log", "crashes/cuda_oom.log")


@dataclass(frozen=True)
class StandInEngine:
    """One user's folders with the recipe `standin`, whose images are on the engine already."""

    root: Path
    port: int

    @property
    def env(self) -> dict[str, str]:
        """What makes the program use these folders."""
        kinds = ("config", "state", "data", "cache", "lock")
        folders = {f"SPARKDEPLOY_{kind.upper()}_DIR": str(self.root / kind) for kind in kinds}
        return {**folders, "HF_HUB_CACHE": str(self.root / "hub")}


def build_image(host: DockerHost, base: str) -> str:
    """Build the stand-in with the guard in it; return its tag."""
    plugin = Path(sparkdeploy.__file__).parent / "vllm_plugin"
    files = [
        ContextFile("Dockerfile", DOCKERFILE.format(base=base).encode(), 0o644),
        *(
            ContextFile(f"stand_in/{name}", FOLDER / name, 0o644)
            for name in ("server.py", "vllm.py")
        ),
        *(ContextFile(f"stand_in/logs/{name}", RECORDED / name, 0o644) for name in LOGS),
        *(
            ContextFile(f"plugin/{path.relative_to(plugin)}", path, 0o644)
            for path in sorted((plugin / "sparkdeploy_vllm").rglob("*.py"))
        ),
    ]
    _build(host, REFERENCE, files, {labels.KIND: "image", labels.STAGE: "stand-in"})
    return REFERENCE


def copy_image(source: DockerHost, target: DockerHost, *references: str) -> None:
    """Carry images from one engine to another."""
    with tempfile.TemporaryFile() as archive:
        for chunk in source.save_images(references):
            archive.write(chunk)
        archive.seek(0)
        target.load_images(archive)


def install(host: DockerHost, root: Path, port: int) -> StandInEngine:
    """Write engine, recipe and model, and mark the image as all the stages of that engine."""
    image = host.find_image(REFERENCE)
    assert image is not None
    recipes = root / "config" / "recipes"
    (recipes / "engines").mkdir(parents=True)
    (recipes / "engines" / "stand-in.yaml").write_text(ENGINE.format(image=image.image_id))
    model = root / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    # Nobody reads it; `up` refuses a folder without weights.
    (model / "model.safetensors").touch()
    (recipes / "standin.yaml").write_text(RECIPE.format(model=model, port=port))
    engine = load_engine(Library((recipes, resources() / "recipes")), "stand-in")
    for stage in made_stages(engine, architecture=architecture(), top="guard"):
        _mark(host, stage)
    contents = ImageLock(root / "state").contents_path(image.image_id)
    contents.parent.mkdir(parents=True)
    contents.write_bytes(contents_adapter().dump_json(CONTENTS))
    return StandInEngine(root, port)


def _mark(host: DockerHost, stage: Stage) -> None:
    # Labels that are given to the builder become an instruction each, which takes seconds.
    pairs = " ".join(f"{json.dumps(name)}={json.dumps(it)}" for name, it in stage.labels().items())
    dockerfile = f"FROM {REFERENCE}\nLABEL {pairs}\n".encode()
    _build(host, stage.tag, [ContextFile("Dockerfile", dockerfile, 0o644)], {})


def _build(
    host: DockerHost, tag: str, files: list[ContextFile], image_labels: dict[str, str]
) -> None:
    context = io.BytesIO()
    write_tar(files, context)
    context.seek(0)
    events = list(
        host.build(context, tag=tag, build_args={}, image_labels=image_labels, network="none")
    )
    assert not [event.error for event in events if event.error], [event.text for event in events]
