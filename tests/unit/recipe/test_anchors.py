"""What a path in a recipe is meant from, and where it leads in a container."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkdeploy.deploy.request import Request, resolve
from sparkdeploy.errors import ConsentNeededError
from sparkdeploy.recipe.load import Library, load_recipe
from sparkdeploy.settings import load_settings

FP8 = "checkpoint.fp8_dense"


def write(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"schema: 1\nname: {path.stem}\ntitle: t\n{text}")
    return str(path)


def own(shipped: Library, folder: Path) -> Library:
    """The shipped recipes, with a folder of the user's own before them."""
    return Library((folder, *shipped.folders))


@pytest.mark.parametrize(
    ("written", "meant"),
    [("models/a", "recipes/models/a"), ("../a", "a"), ("./a", "recipes/a"), ("/a", "/a")],
)
def test_a_relative_folder_is_beside_its_recipe(
    shipped: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, meant: str
) -> None:
    recipe = write(
        tmp_path / "recipes" / "mine.yaml",
        f"extends: v2\nmodel: {{path: {written}}}\n"
        f"checkpoint: {{fp8_dense: {{mode: prebuilt, source: {written}}}}}\n",
    )
    monkeypatch.chdir("/")
    loaded = load_recipe(own(shipped, tmp_path / "recipes"), recipe).recipe
    assert loaded.model.path == str(tmp_path / meant)
    is_path = written.startswith(("/", "."))
    assert loaded.checkpoint.fp8_dense.source == (str(tmp_path / meant) if is_path else written)


def test_a_child_elsewhere_inherits_the_parents_folder(shipped: Library, tmp_path: Path) -> None:
    parent = write(tmp_path / "a" / "parent.yaml", "extends: v2\nmodel: {path: weights}\n")
    child = write(tmp_path / "b" / "child.yaml", f"extends: {parent}\n")
    assert load_recipe(shipped, child, ["allow_unsafe=true"]).recipe.model.path == str(
        tmp_path / "a" / "weights"
    )


def test_what_is_typed_is_meant_as_seen_from_here(
    shipped: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = write(tmp_path / "a" / "mine.yaml", "extends: v2\nmodel: {path: weights}\n")
    monkeypatch.chdir(tmp_path)
    typed = [f"{FP8}.mode=prebuilt", f"{FP8}.source=./fp8", "model.path=other"]
    loaded = load_recipe(shipped, recipe, [*typed, "allow_unsafe=true"]).recipe
    assert loaded.model.path == str(tmp_path / "other")
    assert loaded.checkpoint.fp8_dense.source == str(tmp_path / "fp8")


@pytest.mark.parametrize("written", ["~/models/a", "~"])
def test_a_home_folder_is_found_later(shipped: Library, tmp_path: Path, written: str) -> None:
    recipe = write(tmp_path / "mine.yaml", f"extends: v2\nmodel: {{path: '{written}'}}\n")
    assert load_recipe(own(shipped, tmp_path), recipe).recipe.model.path == written


HEAD = "schema: 1\nname: their\ntitle: t\nextends: v2\n"


@pytest.mark.parametrize(
    "body",
    [
        "serve: {chat_template: linked/id_rsa}",
        "model: {path: linked}",
        "checkpoint: {fp8_dense: {mode: prebuilt, source: ./linked}}",
        "serve: {lora: [{name: x, path: linked}]}",
    ],
)
def test_a_path_is_shown_by_where_it_leads(tmp_path: Path, body: str) -> None:
    secrets = tmp_path / "home" / ".ssh"
    secrets.mkdir(parents=True)
    (secrets / "id_rsa").write_text("secret")
    (tmp_path / "linked").symlink_to(secrets)
    path = tmp_path / "their.yaml"
    path.write_text(f"{HEAD}{body}\n")
    with pytest.raises(ConsentNeededError) as needed:
        resolve(Request(str(path)), load_settings())
    assert f"{secrets}" in str(needed.value.detail)
    resolve(Request(str(path), ("allow_unsafe=true",)), load_settings())
