"""Builds the stand-in's image on a Debian base with Python."""

import tempfile
import uuid
from pathlib import Path

from sparkdeploy import labels
from sparkdeploy.image.context import ContextFile, write_tar
from sparkdeploy.node.host import DockerHost

FOLDER = Path(__file__).parent
RECORDED = FOLDER.parents[1] / "unit" / "server" / "logs"
SERVER = "/stand_in/server.py"


def build_stand_in(host: DockerHost, base: str) -> str:
    """Return the tag of the stand-in's image: one of this session's own.

    Docker keeps the layers, so only the first build takes time; a session that ends removes its
    tag and not that of another one.
    """
    tag = f"sparkdeploy-test/stand-in:{uuid.uuid4().hex[:16]}"
    _build(host, tag, _files(base))
    return tag


def _files(base: str) -> list[ContextFile]:
    dockerfile = f"FROM {base}\nCOPY stand_in/ /stand_in/\n".encode()
    logs = [
        ContextFile(f"stand_in/logs/{path.relative_to(RECORDED)}", path, 0o644)
        for path in sorted(RECORDED.rglob("*.log"))
    ]
    return [
        ContextFile("Dockerfile", dockerfile, 0o644),
        ContextFile("stand_in/server.py", FOLDER / "server.py", 0o644),
        *logs,
    ]


def _build(host: DockerHost, tag: str, files: list[ContextFile]) -> None:
    with tempfile.TemporaryFile() as context:
        write_tar(files, context)
        context.seek(0)
        image_labels = {labels.KIND: "image", labels.STAGE: "stand-in"}
        events = list(host.build(context, tag=tag, build_args={}, image_labels=image_labels))
    errors = [event.error for event in events if event.error]
    assert not errors, "".join(event.text for event in events)
