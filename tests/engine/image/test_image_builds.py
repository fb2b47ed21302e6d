"""Stages built by the real Docker Engine, from next to nothing."""

import contextlib
import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import docker
import pytest

from sparkdeploy.errors import BuildError
from sparkdeploy.image.context import ContextFile
from sparkdeploy.image.inside import apply_mod
from sparkdeploy.image.stages import LEFTOVER_LABEL, Stage
from sparkdeploy.node.host import DockerHost
from sparkdeploy.settings import BuildNetwork, Settings, load_settings
from tests.engine import lab_stages
from tests.engine.lab_stages import build
from tests.engine.small_python import small_python

MakeStage = Callable[[str], Stage]
IN_HALVES = f"""
FROM scratch AS throw-away
LABEL {LEFTOVER_LABEL}
COPY network/ /network/
COPY hello /hello
FROM scratch
COPY --from=throw-away /hello /hello
"""
SECRET = "hush-proxy-password"


@pytest.fixture
def make_stage(host: DockerHost) -> Iterator[MakeStage]:
    """Makes stages that differ from everybody else's; their images go when the test ends."""
    made: list[Stage] = []

    def make(dockerfile: str) -> Stage:
        made.append(lab_stages.make_stage("engine", dockerfile))
        return made[-1]

    yield make
    for stage in made:
        host.remove_image(stage.tag)


@pytest.fixture
def settings(settings: Settings, tmp_path: Path) -> Settings:
    """Settings with a proxy and a certificate bundle that nobody may ever see again."""
    bundle = tmp_path / "ca.pem"
    bundle.write_text(SECRET)
    network = BuildNetwork(
        ca_bundle=bundle, proxies={"http_proxy": f"http://u:{SECRET}@proxy.test:1"}
    )
    return replace(settings, build=network)


def leftovers(host: DockerHost) -> set[str]:
    with contextlib.closing(docker.from_env()) as client:
        found = client.api.images(filters={"label": LEFTOVER_LABEL, "dangling": True})
    return {item["Id"] for item in found}


def test_what_the_network_needs_is_in_no_layer_and_no_history(
    host: DockerHost, make_stage: MakeStage, settings: Settings
) -> None:
    before = leftovers(host)
    stage = replace(make_stage(IN_HALVES), needs_network=True)
    built = build(host, stage, settings)
    with contextlib.closing(docker.from_env()) as client:
        saved = b"".join(client.images.get(built.image_id).save(named=False))
        layers = client.images.get(built.image_id).history()
    history = json.dumps(layers)
    assert SECRET.encode() not in saved
    assert SECRET not in history
    steps = [item["CreatedBy"].rpartition("#(nop)")[2].strip() for item in layers]
    assert not [step for step in steps if step.startswith("COPY") and "network" in step]
    with tarfile.open(fileobj=io.BytesIO(saved)) as archive:
        assert archive.getnames()
    assert leftovers(host) == before


LOCKED = "idna==3.11 --hash=sha256:{digest}"
RIGHT = "771a87f49d9defaf64091e6e6fe9c18d4833f140bd19464795bc32d966ca37ea"


def locked_stage(make_stage: MakeStage, base: str, digest: str) -> Stage:
    install = f"/v/bin/pip install --no-cache-dir --require-hashes --requirement /lock/{digest}"
    stage = make_stage(
        f"FROM {base} AS environment\nLABEL {LEFTOVER_LABEL}\n"
        "COPY network/ /network/\nCOPY lock/ /lock/\n"
        f"RUN . /network/environment && python3 -m venv /v && {install}\n"
        f"FROM {base}\nCOPY --from=environment /v /v\n"
    )
    lock = ContextFile(f"lock/{digest}", LOCKED.format(digest=digest).encode())
    return replace(stage, context=(*stage.context, lock), needs_network=True)


def test_a_wheel_that_differs_from_its_lock_fails_and_the_next_run_succeeds(
    host: DockerHost, make_stage: MakeStage, python_base_image: str
) -> None:
    own = load_settings()
    wrong = locked_stage(make_stage, python_base_image, "0" * 64)
    with pytest.raises(BuildError, match="did not build") as caught:
        build(host, wrong, own)
    assert caught.value.exit_code == 5
    assert "differs from the lock" in (caught.value.hint or "")
    assert host.find_image(wrong.tag) is None
    right = locked_stage(make_stage, python_base_image, RIGHT)
    assert build(host, right, own).tags == (right.tag,)


RUN_ALL, CHANGES = (Path(__file__).with_name(f"{it}.sh") for it in ("run_mods", "changing_mod"))
LOST = "it changed /data/x, and what is written to the image's volume /data is lost"
REFUSED = {
    "exit 3": (3, "it failed with exit code 3"),
    "kill -9 $$": (137, "it was ended by signal 9"),
    "touch /v/x.rej": (1, "a part of its patch fits nowhere: /v/x.rej"),
    "touch /tmp/x.rej": (1, "a part of its patch fits nowhere: /tmp/x.rej"),
    **dict.fromkeys(("echo > /data/x", "echo > /data/x; :", "rm /data/x"), (1, LOST)),
}


def test_a_mod_is_noted_with_what_it_did_or_refused(
    host: DockerHost, python_base_image: str
) -> None:
    program = Path(apply_mod.__file__).read_text(encoding="utf-8")
    with contextlib.closing(docker.from_env()) as client:
        said = client.containers.run(
            small_python(host, python_base_image),
            ["-c", RUN_ALL.read_text(), "sh", program, CHANGES.read_text(), *REFUSED],
            entrypoint="sh",
            network_mode="none",
            tmpfs={"/data": ""},
            remove=True,
        )
    (code, error, noted), *refused = (line.split("\t") for line in said.decode().splitlines())
    digest = hashlib.sha256(b"other\n").hexdigest()
    written = {"/v/link": "link written", "/v/written": f"700 0:0 {digest}"}
    note = {"added": ["/v/folder", "/v/new"], "removed": ["/v/gone"], "written": written}
    assert (code, error, json.loads(noted)) == ("0", "", {**note, "count": 5})
    for told, (wanted, words) in zip(refused, REFUSED.values(), strict=True):
        assert told == [str(wanted), f"sparkdeploy-refused: {words}", ""]
