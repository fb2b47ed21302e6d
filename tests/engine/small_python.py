"""An image with Python, a shell and hardly more, for engines that a test starts for itself."""

from __future__ import annotations

from dataclasses import replace

from sparkdeploy.image.build import find_built
from sparkdeploy.image.stages import LEFTOVER_LABEL, Stage, fingerprint
from sparkdeploy.node.host import DockerHost
from tests.engine.lab_stages import build

DOCKERFILE = r"""
FROM {base} AS whole
LABEL {leftover}
RUN mkdir -p /small/usr/local/bin && cd / && python="$(ls usr/bin/python3*) usr/lib/python3*" \
 && programs="$(printf 'usr/bin/%s ' dash sh mkdir ln install head cp touch rm chmod)" \
 && cp -a --parents bin lib lib64 usr/lib64 usr/bin/sleep $programs $python /small \
 && libraries="$(ldd $programs usr/bin/python3 usr/lib/python3*/lib-dynload/*.so)" \
 && libraries="$(printf '%s\n' "$libraries" | grep -o '[[:space:]]/lib[^ ]*' | sort -u)" \
 && cp -L --remove-destination --parents $(printf 'usr%s\n' $libraries) /small
FROM scratch
COPY --from=whole /small /
"""


def small_python(host: DockerHost, base: str) -> str:
    """Return its tag, made from an image of Debian with Python; it stays for the next run."""
    dockerfile = DOCKERFILE.format(base=base, leftover=LEFTOVER_LABEL)
    inputs = {"dockerfile": dockerfile}
    mark = fingerprint(inputs)
    stage = Stage(
        name="engine",
        engine="lab-python",
        base_source="registry",
        tag=f"sparkdeploy-test/small-python:{mark[:16]}",
        fingerprint=mark,
        dockerfile=dockerfile,
        context=(),
        below=None,
        inputs=inputs,
    )
    if find_built(host, stage) is None:
        build(host, stage)
    return stage.tag


def small_base(host: DockerHost, base: Stage) -> str:
    """Return the id of the same as an image that is taken for this base stage, by its labels."""
    small = small_python(host, base.tag)
    tag = small.replace("small-python", "small-base")
    stage = replace(base, tag=tag, dockerfile=f"FROM {small}\n", debian=None)
    return build(host, stage).image_id
