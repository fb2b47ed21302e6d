"""What of this machine a recipe from elsewhere may have mounted, with real files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from sparkdeploy.deploy.request import Request, resolve
from sparkdeploy.errors import RecipeError
from sparkdeploy.settings import load_settings

if TYPE_CHECKING:
    from pathlib import Path

HEAD = "schema: 1\nname: their\ntitle: t\nextends: v2\n"
FP8 = "checkpoint: {{fp8_dense: {{mode: prebuilt, source: '{}'}}}}"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's home with a key in it, as recipes are saved into it."""
    home = tmp_path / "home" / "user"
    for name in (".ssh/id_rsa", ".ssh/id.jinja", "notes.jinja", "recipes/own.jinja", "secret.txt"):
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("secret")
    monkeypatch.setenv("HOME", str(home))
    return home


def recipe(folder: Path, body: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "their.yaml"
    path.write_text(f"{HEAD}{body}\n")
    return str(path)


def refusal(path: str) -> str:
    with pytest.raises(RecipeError) as refused:
        resolve(Request(path), load_settings())
    assert "--allow-unsafe" in str(refused.value.hint)
    resolve(Request(path, ("allow_unsafe=true",)), load_settings())
    return str(refused.value.detail)


@pytest.mark.parametrize("template", [".ssh/id_rsa", ".ssh/id.jinja", "notes.jinja", "secret.txt"])
def test_a_recipe_saved_into_the_home_folder_gets_no_file_of_it(home: Path, template: str) -> None:
    said = refusal(recipe(home, f"serve: {{chat_template: {template}}}"))
    assert "their.yaml:5: serve.chat_template" in said
    assert str(home / template) in said


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("key.txt", "does not end in .jinja"),
        ("to-hidden.jinja", "hidden"),
        ("to-etc.jinja", "outside"),
        ("/etc/a.jinja", "outside"),
        ("~/recipes/own.jinja", "outside"),
        ("pipe.jinja", "not a regular file"),
        ("large.jinja", "bytes"),
    ],
)
def test_a_template_is_a_small_open_file_beside_its_recipe(
    home: Path, tmp_path: Path, template: str, reason: str
) -> None:
    folder = tmp_path / "elsewhere"
    path = recipe(folder, f"serve: {{chat_template: '{template}'}}")
    for name in (".hidden/a.jinja", "key.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("secret")
    for name, target in (("key", "key.txt"), ("hidden", ".hidden/a.jinja"), ("etc", "/etc/passwd")):
        (folder / f"to-{name}.jinja").symlink_to(target)
    os.mkfifo(folder / "pipe.jinja")
    with (folder / "large.jinja").open("wb") as stream:
        stream.truncate(2**20 + 1)
    with pytest.raises(RecipeError) as refused:
        resolve(Request(path), load_settings())
    assert reason in str(refused.value.detail)


@pytest.mark.parametrize("body", ["model: {{path: '{}'}}", FP8])
@pytest.mark.parametrize(
    ("folder", "reason"),
    [
        ("./.git", "hidden"),
        ("./papers", "no config.json"),
        ("../home/user", "outside"),
        ("/etc", "outside"),
    ],
)
def test_a_models_folder_is_open_and_looks_like_one(
    home: Path, tmp_path: Path, body: str, folder: str, reason: str
) -> None:
    beside = tmp_path / "elsewhere"
    for name in (".git", "papers"):
        (beside / name).mkdir(parents=True)
    (beside / ".git" / "config.json").write_text("{}")
    (beside / "to-ssh").symlink_to(home / ".ssh")
    with pytest.raises(RecipeError) as refused:
        resolve(Request(recipe(beside, body.format(folder))), load_settings())
    assert reason in str(refused.value.detail)


def test_a_folder_that_everybody_writes_into_is_no_folder_of_recipes(tmp_path: Path) -> None:
    public = tmp_path / "public"
    public.mkdir()
    public.chmod(0o1777)
    (public / "a.jinja").write_text("x")
    said = refusal(recipe(public, "serve: {chat_template: a.jinja}"))
    assert "holds more than recipes" in said
