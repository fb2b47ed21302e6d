"""What is mounted of a folder that another user may write to."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparkdeploy.deploy import prepare
from sparkdeploy.deploy.request import Request, resolve
from sparkdeploy.errors import RecipeError
from sparkdeploy.node.node import Nodes, node_behind
from sparkdeploy.plan.container import HostFolders
from sparkdeploy.plan.folders import read_template, write_template
from sparkdeploy.plan.model_checks import exchangeable
from sparkdeploy.plan.steps import Action
from sparkdeploy.settings import load_settings
from sparkdeploy.stored_json import read_unlinked
from tests.fakes.containers import FakeContainers

HEAD = "schema: 1\nname: their\ntitle: t\nextends: v2\n"
ALLOWED = ("allow_unsafe=true",)


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "their.yaml").write_text(f"{HEAD}serve: {{chat_template: a.jinja}}\n")
    (folder / "a.jinja").write_text("harmless")
    (tmp_path / "key.jinja").write_text("secret")
    return folder


def test_the_copy_that_is_mounted_holds_what_was_judged(
    theirs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load_settings()
    template = read_template(
        resolve(Request(str(theirs / "their.yaml"), ALLOWED), settings), settings
    )
    assert template is not None
    (theirs / "a.jinja").unlink()
    (theirs / "a.jinja").symlink_to(theirs.parent / "key.jinja")
    monkeypatch.setattr(prepare, "send_images", lambda *_: {})
    folders = HostFolders(theirs, theirs, template)
    step, head = SimpleNamespace(action=Action.REUSE), SimpleNamespace(spec=None)
    plan: Any = SimpleNamespace(images=(), checkpoint=step, folders=folders, head=head)
    prepare.prepare(plan, Nodes(node_behind("here", FakeContainers().host)), settings)
    assert template.path.is_relative_to(settings.state_dir)
    assert template.path.read_text() == "harmless"
    assert stat.S_IMODE(template.path.stat().st_mode) == 0o644
    assert stat.S_IMODE(template.path.parent.stat().st_mode) == 0o700


def test_a_template_exchanged_after_the_recipe_was_judged_is_refused(theirs: Path) -> None:
    settings = load_settings()
    resolved = resolve(Request(str(theirs / "their.yaml"), ALLOWED), settings)
    (theirs / "a.jinja").write_text("harmful")
    with pytest.raises(RecipeError, match="changed while the recipe was read"):
        read_template(resolved, settings)
    (theirs / "a.jinja").unlink()
    (theirs / "a.jinja").symlink_to(theirs.parent / "key.jinja")
    with pytest.raises(RecipeError, match="leads elsewhere"):
        read_template(resolved, settings)


def test_a_recipe_that_is_changed_for_several_nodes_keeps_its_template(theirs: Path) -> None:
    settings = load_settings()
    resolved = resolve(Request(str(theirs / "their.yaml"), ALLOWED), settings)
    serve = resolved.recipe.serve.model_copy(update={"env": {"A": "b"}})
    changed = replace(resolved, recipe=resolved.recipe.model_copy(update={"serve": serve}))
    assert read_template(changed, settings) == read_template(resolved, settings)


def test_a_copy_that_was_spoilt_is_written_again(theirs: Path) -> None:
    settings = load_settings()
    template = read_template(
        resolve(Request(str(theirs / "their.yaml"), ALLOWED), settings), settings
    )
    assert template is not None
    write_template(template)
    template.path.write_text("spoilt")
    write_template(template)
    assert template.path.read_text() == "harmless"


@pytest.mark.parametrize("linked", ["file", "folder"])
def test_no_link_is_followed_where_the_path_had_none(tmp_path: Path, linked: str) -> None:
    inner = tmp_path / "folder"
    inner.mkdir()
    (inner / "file").write_text("x")
    path = inner / "file"
    assert read_unlinked(path, 10) == b"x"
    moved = tmp_path / "moved"
    (tmp_path / "folder" if linked == "folder" else path).rename(moved)
    (tmp_path / "folder" if linked == "folder" else path).symlink_to(moved)
    assert path.read_text() == "x"
    with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
        read_unlinked(path, 10)


def test_too_large_a_file_and_a_pipe_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(11))
    os.mkfifo(tmp_path / "pipe")
    for name in ("large", "pipe"):
        with pytest.raises(OSError, match=r"larger|not a regular file"):
            read_unlinked(tmp_path / name, 10)


@pytest.mark.parametrize(
    ("mode", "fix"), [(0o755, None), (0o775, "chmod g-w"), (0o777, "chmod o-w"), (0o1777, None)]
)
def test_a_folder_above_that_others_write_to_is_found(
    tmp_path: Path, mode: int, fix: str | None
) -> None:
    above = tmp_path / "above"
    model = above / "model"
    model.mkdir(parents=True)
    gid = 4711 if os.geteuid() == 0 else os.getegid()
    os.chown(above, os.geteuid(), gid)
    above.chmod(mode)
    found = exchangeable(model, {0, os.geteuid()})
    if os.geteuid() != 0 and mode == 0o775:
        return  # the group of a user alone is as good as the user
    assert (found is None) == (fix is None)
    if found is not None:
        assert found.folder == above
        assert found.fix == f"{fix} {above}"


def test_a_folder_of_another_user_is_found(tmp_path: Path) -> None:
    model = tmp_path / "above" / "model"
    model.mkdir(parents=True)
    found = exchangeable(model, {4711})
    assert found is not None
    assert found.fix == f"sudo chown 4711 {model}"
