"""Names of images: Docker's grammar, and one sentence for what is none."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from sparkdeploy.recipe.image_name import image_name, is_pinned

if TYPE_CHECKING:
    from tests.unit.program import Run

DIGEST = "@sha256:" + "0" * 64


@pytest.mark.parametrize(
    "name",
    [
        "vllm",
        "vllm:v1",
        "a/b/c_d__e--f.g:V1_.-x",
        "localhost/vllm:1",
        "localhost:5000/a",
        "HOST.example:5000/a/b:c",
        "127.0.0.1:1/a",
        "[::1]:5000/a:b",
        "sha256:abc",
        "a" * 255,
    ],
)
def test_a_tag_as_docker_takes_it(name: str) -> None:
    assert image_name(name) == name
    assert not is_pinned(name)


@pytest.mark.parametrize(
    "name", [f"a/b{DIGEST}", f"h:1/b:tag{DIGEST}", "sha256:" + "a" * 64, "0123456789ab"]
)
def test_a_digest_or_an_id(name: str) -> None:
    assert image_name(name) == name
    assert is_pinned(name)


@pytest.mark.parametrize(
    "name",
    [
        "host.example/VLLM:v1",
        "Vllm",
        "Host/vllm:1",
        "a:b:c",
        "http://host/a:1",
        "x..y/z:1",
        "a/b..c",
        "-a",
        "a_/b",
        "a//b",
        "a/",
        "/a",
        "a:",
        "a:é",
        "é",
        "a@sha256:0",
        f"A{DIGEST}",
        f"a:b:c{DIGEST}",
        "a:" + "b" * 129,
        "a" * 256,
        "a\n",
        "",
    ],
)
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(ValueError, match="NAME:TAG, NAME@sha256"):
        image_name(name)
    assert not is_pinned(name)


@pytest.mark.parametrize("name", ["host.example/VLLM:v1", "a:b:c", "http://x/y", "x..y/z:1"])
def test_it_is_told_in_one_sentence(run: Run, name: str) -> None:
    done = run("plan", "baseline", "--set", "engine=image", "--set", f"image={name}")
    assert done.returncode == 3
    assert "has 1 mistake" in done.stderr
    assert (
        f"image: {json.dumps(name).replace(chr(34), chr(39))} is wrong; an image is NAME:TAG"
        in done.stderr
    )
    assert "pattern" not in done.stderr


def test_who_names_none_is_told_what_works(run: Run) -> None:
    done = run("plan", "baseline", "--set", "engine=image")
    assert done.returncode == 3
    assert "--set image=, which is NAME:TAG, NAME@sha256" in done.stderr
