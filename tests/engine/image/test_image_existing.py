"""An image that is there already becomes an engine, or is refused with the reason."""

import contextlib
import io
import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace

import docker
import pytest

from sparkdeploy import labels
from sparkdeploy.errors import BuildError
from sparkdeploy.image.context import ContextFile, write_tar
from sparkdeploy.image.stages import Stage
from sparkdeploy.node.facts import architecture
from sparkdeploy.node.host import DockerHost
from sparkdeploy.recipe.engine import Engine
from sparkdeploy.recipe.load import Library, load_engine
from sparkdeploy.settings import resources
from tests.engine.image.named_vllm import SITE, with_vllm
from tests.engine.lab_stages import build
from tests.engine.shipped_stages import shipped_stages
from tests.fakes.plans import made_stages

MakeImage = Callable[..., str]
pytestmark = pytest.mark.timeout(1800)


@pytest.fixture
def make_image(host: DockerHost, python_base_image: str) -> Iterator[MakeImage]:
    """Makes foreign images (without any label of ours) on a Debian; returns their ids."""
    made: list[str] = []

    def make(*instructions: str) -> str:
        lines = [f"FROM {python_base_image}", *instructions, f"LABEL {labels.KIND}=foreign", ""]
        context = io.BytesIO()
        write_tar([ContextFile("Dockerfile", "\n".join(lines).encode())], context)
        context.seek(0)
        tag = f"lab-foreign:{uuid.uuid4().hex[:12]}"
        for event in host.build(context, tag=tag, build_args={}, image_labels={}, network="none"):
            assert event.error is None, event.error
        made.append(tag)
        image = host.find_image(tag)
        assert image is not None
        return image.image_id

    yield make
    with contextlib.closing(docker.from_env()) as client:
        for tag in made:
            client.images.remove(tag)


def engine_on(image: str, *, vllm: str, device: str) -> Engine:
    shipped = load_engine(Library((resources() / "recipes",)), "image")
    # An engine file of a user's own says which release its image has, and is held to it.
    own = {"name": "mine", "image": image, "vllm": vllm, "device": device}
    return shipped.model_copy(update=own)


def stages_on(image: str, *, vllm: str = "0.25.1", device: str = "cuda") -> tuple[Stage, ...]:
    return made_stages(engine_on(image, vllm=vllm, device=device), architecture=architecture())


@pytest.mark.parametrize(
    ("instructions", "words"),
    [
        (("RUN rm -f /usr/bin/python3* /usr/local/bin/python*",), "there is no Python in it"),
        ((), "no Python in it has vLLM"),
        ((with_vllm("0.33.0", "13.0"),), "it has vLLM 0.33.0, and the engine says 0.25.1"),
        ((with_vllm("0.25.1", None),), "its torch is a CPU build"),
        (("ENV PYTHONPATH=/opt/vllm",), "no Python in it has vLLM .*; its PYTHONPATH is not read"),
        ((with_vllm("0.25.1", "13.0"), "VOLUME /opt"), "/opt is a volume of that image"),
        (("ONBUILD RUN false",), "stage engine of engine mine did not build"),
        ((with_vllm("0.25.1", "13.0"), "RUN mkdir /opt/venv"), "it has a /opt/venv of its own"),
    ],
    ids=[
        *("no-python", "no-vllm", "another-release", "cpu-torch", "python-path", "volume"),
        *("onbuild", "own-venv"),
    ],
)
def test_an_image_that_does_not_fit_is_refused_with_the_reason(
    host: DockerHost, make_image: MakeImage, instructions: tuple[str, ...], words: str
) -> None:
    stage = stages_on(make_image(*instructions))[0]
    with pytest.raises(BuildError, match=words) as caught:
        build(host, stage)
    assert caught.value.exit_code == 5
    assert host.find_image(stage.tag) is None
    assert host.find_image(f"{stage.tag}-unproven") is None


def test_an_image_that_is_not_there_is_refused_before_docker_asks_a_registry(
    host: DockerHost,
) -> None:
    with pytest.raises(BuildError, match="not on this machine"):
        build(host, stages_on("sha256:" + "0" * 64)[0])


def test_a_system_python_is_adopted_and_what_it_sees_is_still_seen(
    host: DockerHost, make_image: MakeImage
) -> None:
    # Neither its shell nor its PATH is needed for what is added.
    odd = ("ENV PATH=/nowhere", 'SHELL ["/bin/nosh"]')
    image_id = make_image(with_vllm("0.32.0", None), *odd)
    stage = stages_on(image_id, vllm="0.32.0", device="cpu")[0]
    try:
        image = build(host, stage)
        program = "import sys, vllm, torch.version; print(sys.prefix, vllm.__file__)"
        code, output = host.run_once(
            image.image_id, ["-I", "-c", program], entrypoint=["/opt/venv/bin/python"]
        )
        assert (code, output.split()) == (0, ["/opt/venv", f"{SITE}/vllm/__init__.py"])
        proof = json.loads(image.labels[labels.PROOF])
        assert proof["versions"] == {"vllm": "0.32.0"}
        # A vLLM in name only has none of the hooks, and the plugin's stage says so.
        above = stages_on(stage.tag, vllm="0.32.0", device="cpu")[1]
        refused = replace(
            above,
            below=stage.tag,
            inputs={**above.inputs, "below": stage.fingerprint},
            dockerfile=above.dockerfile.replace(above.below or "", stage.tag),
        )
        with pytest.raises(BuildError, match="stage plugin") as caught:
            build(host, refused)
        assert "a required hook does not fit" in (caught.value.detail or "")
        assert host.find_image(refused.tag) is None
    finally:
        host.remove_image(stage.tag)


@pytest.mark.slow
def test_the_cpu_engine_serves_as_somebody_elses_image(host: DockerHost) -> None:
    foreign = [build(host, stage) for stage in shipped_stages()[:2]][-1]
    stages = stages_on(foreign.image_id, vllm="0.32.0", device="cpu")
    try:
        built = [build(host, stage) for stage in stages]
        code, output = host.run_once(
            built[-1].image_id, ["--version"], entrypoint=["/opt/venv/bin/vllm"]
        )
        assert (code, output.strip().splitlines()[-1][:6]) == (0, "0.32.0")
        assert json.loads(built[-1].labels[labels.PROOF])["selfcheck"] == "fits"
    finally:
        for stage in reversed(stages):
            host.remove_image(stage.tag)
