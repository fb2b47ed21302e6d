"""Images of others: what a tag was pinned to, and what a plan makes of it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sparkdeploy.atomic_files import write_private
from sparkdeploy.errors import RecipeError
from sparkdeploy.image.pins import MAX_NAMED, differences, keep
from sparkdeploy.recipe.arguments import release_of
from sparkdeploy.recipe.image_pins import (
    ImageContents,
    ImageLock,
    ImagePin,
    InspectedEngine,
    contents_adapter,
)
from sparkdeploy.recipe.load import Resolved, library, load_recipe
from sparkdeploy.recipe.releases import newest
from sparkdeploy.settings import load_settings
from tests.unit.program import Run

TAG = "vllm/vllm-openai:nightly"
DIGEST = "vllm/vllm-openai@sha256:" + "a" * 64
CONTENTS = ImageContents(
    vllm="0.33.0",
    torch="2.14.0",
    cuda="13.0",
    kernels=["sm_120f", "sm_121a"],
    rdma_missing={},
    release=None,
)


def pinned(contents: ImageContents | None = CONTENTS) -> ImageLock:
    settings = load_settings()
    for tag in (TAG, "another/image:1"):
        keep(settings, tag, ImagePin(DIGEST, "2026-11-24T00:00:00+00:00"))
    lock = ImageLock(settings.state_dir)
    if contents is not None:
        write_private(lock.contents_path(DIGEST), contents_adapter().dump_json(contents).decode())
    return lock


def baseline(*settings: str) -> Resolved:
    wanted = ("engine=image", f"image={TAG}", *settings)
    return load_recipe(library(load_settings()), "baseline", wanted)


def test_a_tag_that_nobody_asked_for_stays_a_tag() -> None:
    resolved = baseline()
    assert (resolved.engine.image, resolved.image) == (TAG, TAG)
    assert not isinstance(resolved.engine, InspectedEngine)


def test_a_pinned_tag_is_its_digest_with_what_it_holds() -> None:
    pinned()
    resolved = baseline()
    assert isinstance(resolved.engine, InspectedEngine)
    assert (resolved.engine.image, resolved.image) == (DIGEST, TAG)
    assert resolved.engine.vllm == "0.33.0"
    assert resolved.recipe.image == TAG


def test_flags_are_held_against_the_images_own_parser() -> None:
    known = newest()
    flags = {name: flag for name, flag in known.flags.items() if name != "--max-model-len"}
    pinned(
        replace(CONTENTS, release=replace(known, flags={**flags, "--of-a-fork": flags["--port"]}))
    )
    with pytest.raises(RecipeError, match="mistake") as caught:
        baseline()
    assert "has no flag --max-model-len" in (caught.value.detail or "")
    with_null = ("serve.max_model_len=null", "serve.extra_args=[--of-a-fork, '1']")
    resolved = baseline(*with_null)
    assert release_of(resolved.engine)[1]
    assert resolved.warnings == ()


@pytest.mark.parametrize(
    "text", ["", "[]", '{"schema": 2}', '{"schema": 1, "images": {"a:b": {"image": "a:b"}}}', "\0"]
)
def test_a_lock_that_is_none_is_named_with_its_way_out(text: str) -> None:
    lock = pinned()
    lock.path.write_text(text)
    with pytest.raises(RecipeError, match=r"image-lock\.json") as caught:
        baseline()
    assert "rm " in (caught.value.hint or "")
    lock.path.unlink()
    lock = pinned()
    lock.contents_path(DIGEST).unlink()
    lock.contents_path(DIGEST).mkdir()
    with pytest.raises(RecipeError, match=str(lock.contents_path(DIGEST))):
        baseline()


def test_what_another_image_brings_is_told() -> None:
    known = newest()
    fewer = replace(known, flags={name: it for name, it in known.flags.items() if name != "--port"})
    before = replace(CONTENTS, release=fewer)
    after = replace(CONTENTS, vllm="0.34.0", kernels=["sm_121a"], release=known)
    assert list(differences(before, after)) == [
        "vllm 0.33.0 -> 0.34.0",
        "kernels sm_120f sm_121a -> sm_121a",
        "new flags: --port",
    ]
    assert list(differences(after, before))[-1] == "flags that are gone: --port"
    *_, many = differences(replace(before, release=replace(known, flags={})), after)
    assert many.count("--") == MAX_NAMED
    assert many.endswith(f" and {len(known.flags) - MAX_NAMED} more")
    assert list(differences(None, after)) == [after.describe()]
    assert list(differences(after, after)) == []


@pytest.mark.usefixtures("no_docker")
def test_a_plan_tells_digest_and_contents(run: Run) -> None:
    pinned()
    wanted = ("plan", "baseline", "--set", "engine=image", "--set", f"image={TAG}")
    said = run(*wanted).stdout
    assert f"{TAG} is {DIGEST}" in said
    assert f"it holds {CONTENTS.describe()}" in said
    told = json.loads(run(*wanted, "--json").stdout)["image"]
    assert (told["name"], told["pinned"], told["holds"]["vllm"]) == (TAG, DIGEST, "0.33.0")
