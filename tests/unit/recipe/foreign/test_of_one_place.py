"""What belongs to its author's place alone: the build of an image, and the node that it ran on."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy.errors import RecipeError
from sparkdeploy.recipe.foreign.translate import RELEASE, RELEASE_IN_NAME
from sparkdeploy.recipe.load import Library, Resolved, load_recipe
from sparkdeploy.recipe.releases import releases
from sparkdeploy.vllm_plugin.sparkdeploy_vllm.node_variables import belongs_to_node
from tests.fakes.plans import observed, plan
from tests.unit.recipe.foreign.samples import CASES, left_out

RECIPE = """\
recipe_version: "1"
name: ref
model: bird/Parrot-8B
container: {container}
build_args: {build}
env: {{{env}}}
command: vllm serve bird/Parrot-8B {words}
"""


def text(container: str = "vllm-node", build: str = "[]", env: str = "", words: str = "") -> str:
    return RECIPE.format(container=container, build=build, env=env, words=words)


@pytest.mark.parametrize(("container", "build", "release"), CASES["releases"])
def test_a_build_of_a_release_leads_to_its_public_image(
    theirs: Callable[..., Resolved], container: str, build: str, release: str
) -> None:
    with pytest.raises(RecipeError) as refused:
        theirs(text(container, build))
    assert f"with vLLM {release}, which no engine here has" in refused.value.message
    first, _, second = str(refused.value.hint).partition("; ")
    image = f"--set engine=image --set image=vllm/vllm-openai:v{release}"
    assert first.startswith(image)
    assert "takes another release, 0.33.0" in second
    words = image.removeprefix("--set ").split(" --set ")
    assert theirs(text(container, build), *words).engine.vllm == release
    other = theirs(text(container, build), "engine=cuda-0.33")
    assert f"it has vLLM {release}" in left_out(other)["container"]


@pytest.mark.parametrize("engine", [name for name in releases() if name.startswith("cuda")])
def test_a_release_of_an_engine_of_ours_is_that_engine(
    theirs: Callable[..., Resolved], engine: str
) -> None:
    release = releases()[engine].vllm
    build = f"[--vllm-ref, v{release}]"
    assert theirs(text(build=build)).engine.name == engine


def test_a_commit_is_named_and_never_replaced(theirs: Callable[..., Resolved]) -> None:
    with pytest.raises(RecipeError) as refused:
        theirs(text(build="[--vllm-ref, 0123abcd]"))
    assert "with vLLM at 0123abcd" in refused.value.message
    assert "image=NAME:TAG" in str(refused.value.hint)
    for container in ("vllm-node:26.09-py3", "vllm-node-130", "vllm-node-20261122"):
        with pytest.raises(RecipeError, match="nothing is known to stand for it"):
            theirs(text(container))
    for build in ("[--vllm-ref, main]", "[]", "[--vllm-ref]", "[--tf5, {a: 1}]"):
        assert theirs(text(build=build)).engine.name == "cuda-0.33"
    # An image that is published is taken as it is named.
    published = theirs(text("eugr/spark-vllm:v026", "[--vllm-ref, v0.26.0]"))
    assert published.image == "eugr/spark-vllm:v026"


@given(
    st.text(max_size=12), st.sampled_from(["", ":", "-v", "_"]), st.text("0123456789.", max_size=8)
)
def test_no_name_of_an_image_breaks_it(word: str, sign: str, number: str) -> None:
    for pattern in (RELEASE, RELEASE_IN_NAME):
        if found := pattern.search(f"vllm{word}{sign}{number}"):
            assert len([it for it in found.groups() if it is not None and it.isdigit()]) in (2, 3)


@pytest.mark.parametrize("name", CASES["of_a_node"])
def test_what_belongs_to_a_node_is_left_out_of_a_recipe(
    theirs: Callable[..., Resolved], tmp_path: Path, shipped: Library, name: str
) -> None:
    resolved = theirs(text(env=f"{name}: '3', NCCL_DEBUG: INFO"))
    assert resolved.recipe.serve.env == {"NCCL_DEBUG": "INFO"}
    assert "the node itself decide it" in left_out(resolved)[name]
    own = tmp_path / "own.yaml"
    own.write_text(
        f"schema: 1\nname: own\ntitle: mine\nextends: v2\nserve: {{env: {{{name}: '3'}}}}\n"
    )
    with pytest.raises(RecipeError) as refused:
        load_recipe(shipped, str(own))
    assert f"serve.env.{name}: {name} belongs to each node" in str(refused.value.detail)
    typed = f"serve.env.{name}='3'"
    assert load_recipe(shipped, "v2", [typed]).recipe.serve.env[name] == "3"


def test_an_image_says_nothing_of_a_node(shipped: Library) -> None:
    """The guard drops what was not said of this node; a deployment alone has nothing to keep."""
    alone = plan(shipped, observed(), "v2").head.spec
    assert alone is not None
    assert "--node-env" not in alone.command
    typed = plan(shipped, observed(), "v2", "serve.env.NCCL_SOCKET_IFNAME=lo").head.spec
    assert typed is not None
    words = typed.command
    assert words[words.index("--node-env") + 1] == "NCCL_SOCKET_IFNAME"
    assert not any(map(belongs_to_node, {**alone.env, **os.environ}))
    assert not belongs_to_node("NCCL_DEBUG")
    assert not belongs_to_node("")


@pytest.mark.parametrize("word", ["nvfp4", "NVFP4", "int4", "w4a16", "fp4"])
def test_a_kind_of_checkpoint_is_no_quantization(
    theirs: Callable[..., Resolved], shipped: Library, word: str
) -> None:
    for flag in ("--quantization", "-q"):
        resolved = theirs(text(words=f"{flag} {word}"))
        assert resolved.recipe.serve.quantization is None
        assert "config.json of the checkpoint says" in left_out(resolved)[f"{flag} {word}"]
    assert theirs(text(words="-q modelopt_fp4")).recipe.serve.quantization == "modelopt_fp4"
    with pytest.raises(RecipeError) as refused:
        load_recipe(shipped, "v2", [f"serve.quantization={word}"])
    assert "leave it out: config.json of the checkpoint says" in str(refused.value.detail)
