"""Names of images: Docker's grammar, and one sentence for what is none."""

from __future__ import annotations

import pytest

from sparkdeploy.recipe.image_name import image_name, is_pinned

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
