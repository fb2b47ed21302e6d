"""Makes the stand-in the engine stage of the CPU engine on a machine of the test's own.

The base stage below it and the plugin stage on top of it are the product's own.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sparkdeploy import labels
from sparkdeploy.image.context import ContextFile, write_tar
from sparkdeploy.node.facts import architecture
from sparkdeploy.node.host import DockerHost
from sparkdeploy.settings import resources
from tests.engine.shipped_stages import shipped_stages

FOLDER = Path(__file__).parent
DOCKERFILE = """\
FROM {base}
RUN python3 -m venv --without-pip /opt/venv && rm /opt/venv/bin/python
COPY bin/ /opt/venv/bin/
{packages}
ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin
WORKDIR /tmp
LABEL {labels}
"""

# As in the CUDA engines. Without bytecode Ray's agents import for longer than its raylet waits.
PACKAGES = """\
COPY site-packages/ /opt/venv/lib/python3.11/site-packages/
RUN python3 -m compileall -q -j 2 /opt/venv/lib/python3.11/site-packages"""
PYTHON = "3.11"
RAY_COMMAND = b"""\
#!/opt/venv/bin/python3
from ray.scripts.scripts import main
main()
"""


def fetch_ray(folder: Path) -> None:
    """Fetch the Ray that the CUDA engines are locked to, for the base stage's Python."""
    lock = resources() / f"recipes/engines/locks/cuda-0.33/{architecture()}-py311.txt"
    locked = re.search(r"^ray==\S+", lock.read_text(), re.MULTILINE)
    assert locked is not None
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
         "--root-user-action=ignore", "--no-compile", "--only-binary=:all:",
         f"--python-version={PYTHON}", f"--target={folder}", locked[0]],
        check=True,
    )  # fmt: skip


def build_stand_in_engine(host: DockerHost, packages: Path | None = None) -> str:
    """Build it on the base stage that is there already, with Python packages; return its tag."""
    base, engine, _ = shipped_stages()
    pairs = {**engine.labels(), labels.PROOF: "{}"}
    text = " ".join(f"{name}={json.dumps(value)}" for name, value in pairs.items())
    lines = DOCKERFILE.format(base=base.tag, labels=text, packages=PACKAGES if packages else "")
    files = [
        ContextFile("Dockerfile", lines.encode()),
        ContextFile("bin/vllm", FOLDER / "vllm", 0o755),
        ContextFile("bin/python", FOLDER / "python", 0o755),
        *(_package_files(packages) if packages else ()),
    ]
    with tempfile.TemporaryFile() as context:
        write_tar(files, context)
        context.seek(0)
        events = list(host.build(context, tag=engine.tag, build_args={}, image_labels={}))
    errors = [event.error for event in events if event.error]
    assert not errors, "".join(event.text for event in events)
    return engine.tag


def _package_files(packages: Path) -> Iterator[ContextFile]:
    yield ContextFile("bin/ray", RAY_COMMAND, 0o755)
    for path in sorted(packages.rglob("*")):
        if path.is_file():
            place = f"site-packages/{path.relative_to(packages)}"
            yield ContextFile(place, path, path.stat().st_mode & 0o777)
