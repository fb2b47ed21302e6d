"""Mods: where their folders are looked for, and what is read of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sparkdeploy import labels
from sparkdeploy.errors import BuildError, RecipeError
from sparkdeploy.image import mods
from sparkdeploy.image.mods import read_mod
from sparkdeploy.image.stages import Stage
from sparkdeploy.recipe.load import Library, load_engine, load_recipe
from sparkdeploy.recipe.mods import FoundMod
from tests.fakes.plans import made_stages
from tests.unit.conftest import SHIPPED

RECIPE = """\
schema: 1
name: mine
title: Mine
engine: cuda-0.33
model: {repo: a/b}
mods: [MODS]
"""
SCRIPT = "sed -i s/old/new/ vllm/x.py\n"


def write_mod(folder: Path, script: str = SCRIPT) -> Path:
    folder.mkdir(parents=True)
    (folder / "run.sh").write_text(script)
    return folder


def found(shipped: Library, path: Path, named: str, *settings: str) -> FoundMod:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(RECIPE.replace("MODS", named))
    wanted = ("allow_unsafe=true", *settings)
    (only,) = load_recipe(shipped, str(path), wanted).mods
    return only


def test_a_mod_is_found_at_the_top_of_its_repository(shipped: Library, tmp_path: Path) -> None:
    folder = write_mod(tmp_path / "repo" / "mods" / "fix")
    path = tmp_path / "repo" / "recipes" / "four" / "mine.yaml"
    assert found(shipped, path, "{folder: mods/fix}").folder == folder


@pytest.mark.parametrize(("levels", "is_found"), [(5, True), (6, False)])
def test_without_a_repository_six_folders_are_looked_in(
    shipped: Library, tmp_path: Path, levels: int, is_found: bool
) -> None:
    write_mod(tmp_path / "mods" / "fix")
    path = tmp_path.joinpath(*"abcdef"[:levels], "mine.yaml")
    assert found(shipped, path, "{folder: mods/fix}").is_missing != is_found


@pytest.mark.parametrize("name", ["../mods/fix", "mods/../../mods/fix", "mods/out"])
def test_a_mod_leads_out_of_no_folder(shipped: Library, tmp_path: Path, name: str) -> None:
    outside = write_mod(tmp_path / "mods" / "fix")
    inside = tmp_path / "repo" / "mods"
    inside.mkdir(parents=True)
    (tmp_path / "repo" / ".git").mkdir()
    (inside / "out").symlink_to(outside)
    assert found(shipped, tmp_path / "repo" / "mine.yaml", f"{{folder: {name}}}").is_missing


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("{folder: mods/fix, run: echo}", "has both a folder and commands"),
        *(
            (written, "has neither a folder nor commands")
            for written in ("{}", '{folder: ""}', '{run: ""}', '{run: "  "}', "{network: true}")
        ),
    ],
)
def test_a_mod_is_either_a_folder_or_commands(
    shipped: Library, tmp_path: Path, written: str, words: str
) -> None:
    write_mod(tmp_path / "mods" / "fix")
    with pytest.raises(RecipeError) as refused:
        found(shipped, tmp_path / "mine.yaml", written)
    assert f"{tmp_path}/mine.yaml:6: mods.0: {words}" in (refused.value.detail or "")


def test_a_mod_is_known_by_the_content_of_all_its_files(tmp_path: Path) -> None:
    folder = write_mod(tmp_path / "Fix it")
    mod = FoundMod("mods/Fix it", folder, "", needs_network=False)
    first = read_mod(mod)
    assert first.slug == "fix-it"
    for name in (".git", "__pycache__"):
        (folder / name).mkdir()
        (folder / name / "x").touch()
    (folder / ".DS_Store").touch()
    assert read_mod(mod).digest() == first.digest()
    (folder / "x.patch").write_text("+")
    assert read_mod(mod).digest() != first.digest()
    second = read_mod(mod).digest()
    (folder / "run.sh").chmod(0o755)
    assert read_mod(mod).digest() != second


def test_commands_are_a_mod_that_ends_at_the_first_that_fails_and_keeps_their_secrets() -> None:
    run = "curl -u me:hush-hush https://mods.test/x.patch"
    mod = read_mod(FoundMod(run, None, f"{run}\ntrue\n", needs_network=True))
    assert (mod.script, mod.files[0].mode) == (f"set -e\n{run}\ntrue\n", 0o755)
    marks = stages(mod)[2].labels()
    assert "mods.test" in marks[labels.MOD]
    assert "hush" not in str(marks)


NO_MODS: dict[str, Callable[[Path], object]] = {
    "key is a link": lambda mod: (mod / "key").symlink_to("/etc/passwd"),
    "keys is a link": lambda mod: (mod / "keys").symlink_to("/etc/ssl"),
    "pipe is a link or no regular file": lambda mod: os.mkfifo(mod / "pipe"),
    "holds no run.sh": lambda mod: (mod / "run.sh").rename(mod / "walk.sh"),
    "more than 2 files": lambda mod: (mod / "third").touch(),
    "other: it is larger than": lambda mod: (mod / "other").write_bytes(b"x" * 41),
    "has more than 0 MiB": lambda mod: (mod / "other").write_bytes(b"x" * 13),
    "'a\\nb' cannot be printed": lambda mod: (mod / "a\nb").touch(),
    "run.sh has the line ends of Windows": lambda mod: (mod / "run.sh").write_bytes(b"true\r\n"),
}


@pytest.mark.parametrize("words", NO_MODS)
def test_what_is_no_mod_is_refused(
    tmp_path: Path, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_mod(tmp_path / "fix")
    (folder / "other").write_bytes(b"x" * (40 - len(SCRIPT)))
    monkeypatch.setattr(mods, "MAX_FILES", 2)
    monkeypatch.setattr(mods, "MAX_BYTES", 40)
    mod = FoundMod("fix", folder, "", needs_network=False)
    read_mod(mod)
    NO_MODS[words](folder)
    with pytest.raises(BuildError) as caught:
        read_mod(mod)
    assert words in caught.value.message


def stages(*made: mods.ModFiles) -> tuple[Stage, ...]:
    engine = load_engine(SHIPPED, "cuda-0.33")
    return made_stages(engine, "debian", mods=made)


def test_a_mod_is_a_stage_between_engine_and_plugin(tmp_path: Path) -> None:
    mod = read_mod(FoundMod("fix", write_mod(tmp_path / "fix"), "", needs_network=False))
    plain, modded = stages(), stages(mod)
    assert [stage.name for stage in modded] == ["base", "engine", "mod", "plugin"]
    assert modded[:2] == plain[:2]
    assert modded[3].fingerprint != plain[2].fingerprint
    assert {file.path for file in modded[2].context} == {"apply/apply_mod.py", "mod/run.sh"}
    assert not modded[2].needs_network
    networked = stages(replace(mod, needs_network=True))[2]
    assert networked.needs_network
    (tmp_path / "fix" / "run.sh").write_text("true\n")
    other = stages(read_mod(FoundMod("fix", tmp_path / "fix", "", needs_network=False)))[2]
    assert len({it.fingerprint for it in (modded[2], networked, other)}) == 3


def test_a_template_of_a_mod_may_not_lead_out_of_the_workspace(
    shipped: Library, tmp_path: Path
) -> None:
    for name in ("../x.jinja", "/etc/x.jinja", "a/../../x.jinja", ".x.jinja", "x.txt"):
        with pytest.raises(RecipeError):
            load_recipe(shipped, "baseline", (f"serve.chat_template_of_mod={name}",))
