"""Makes the stand-in the engine stage of the CPU engine on a machine of the test's own.

The base stage below it and the plugin stage on top of it are the product's own.
"""

from __future__ import annotations

import json
import platform
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy import labels
from sparkdeploy.image.context import ContextFile, write_tar
from sparkdeploy.image.stages import Stage, stages_of
from sparkdeploy.recipe.load import Library, load_engine
from sparkdeploy.settings import resources

if TYPE_CHECKING:
    from sparkdeploy.node.host import DockerHost

FOLDER = Path(__file__).parent
DOCKERFILE = """\
FROM {base}
RUN python3 -m venv --without-pip /opt/venv && rm /opt/venv/bin/python
COPY bin/ /opt/venv/bin/
ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin
WORKDIR /tmp
LABEL {labels}
"""


def cpu_stages() -> tuple[Stage, ...]:
    """The stages of the rehearsal's engine on a machine that reaches no registry."""
    return stages_of(
        load_engine(Library((resources() / "recipes",)), "cpu-0.32"),
        base_source="debian",
        architecture="aarch64" if platform.machine() in {"aarch64", "arm64"} else "x86_64",
        resources=resources(),
    )


def build_stand_in_engine(host: DockerHost) -> str:
    """Build it on the base stage that is there already; return its tag."""
    base, engine, _ = cpu_stages()
    pairs = {**engine.labels(), labels.PROOF: "{}"}
    text = " ".join(f"{name}={json.dumps(value)}" for name, value in pairs.items())
    files = [
        ContextFile("Dockerfile", DOCKERFILE.format(base=base.tag, labels=text).encode()),
        ContextFile("bin/vllm", FOLDER / "vllm", 0o755),
        ContextFile("bin/python", FOLDER / "python", 0o755),
    ]
    with tempfile.TemporaryFile() as context:
        write_tar(files, context)
        context.seek(0)
        events = list(host.build(context, tag=engine.tag, build_args={}, image_labels={}))
    errors = [event.error for event in events if event.error]
    assert not errors, "".join(event.text for event in events)
    return engine.tag
