"""What was judged is what is used, at whatever moment a file's owner exchanges it.

A stranger's recipe, its template and its mod lie in a folder that the stranger may write to. After
each time that one of them was read, something else is put in its place: the command is refused, or
uses what it asked about.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path

import pytest

from sparkdeploy import stored_json
from sparkdeploy.deploy.request import Request, resolve
from sparkdeploy.errors import ConsentNeededError, SparkdeployError
from sparkdeploy.plan.folders import read_template
from sparkdeploy.plan.images import mods_of
from sparkdeploy.recipe.load import library
from sparkdeploy.settings import Settings, load_settings

HEAD = "schema: 1\nname: their\ntitle: t\nextends: v2\n"
ASKING = "serve: {chat_template: a.jinja}\nmods: [{folder: mods/m}, {run: 'echo one\n\n  two'}]\n"
EVIL = "evil"
MOST_READS = 60


class Exchange:
    """Puts something else in a file's place once files below a folder were opened so often."""

    def __init__(self, folder: Path, do: Callable[[], None], after: int) -> None:
        self.opened, self.folder, self.do, self.after = 0, folder, do, after

    def __call__(self, path: Path, really: Callable[[Path], BufferedReader]) -> BufferedReader:
        file = really(path)
        if path.is_relative_to(self.folder):
            self.opened += 1
            if self.opened == self.after:
                self.do()
        return file


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    folder = tmp_path / "theirs"
    (folder / "mods" / "m").mkdir(parents=True)
    (folder / "mods" / "m" / "run.sh").write_text("echo one\n")
    (folder / "a.jinja").write_text("one")
    (folder / "their.yaml").write_text(HEAD + ASKING)
    own = load_settings().config_dir / "recipes"
    own.mkdir(parents=True, exist_ok=True)
    (own / "mine.yaml").write_text("schema: 1\nname: mine\ntitle: t\nextends: v2\n")
    return folder


def used(recipe: Path, settings: Settings) -> str:
    """Return all of a recipe that runs or is mounted."""
    resolved = resolve(Request(str(recipe)), settings)
    template = read_template(resolved, settings)
    texts = [text for mod in mods_of(resolved) for _, text in mod.texts()]
    return "\n".join([*texts, template.content.decode() if template else "", repr(resolved.recipe)])


def consent(recipe: Path, settings: Settings) -> None:
    with pytest.raises(ConsentNeededError) as needed:
        used(recipe, settings)
    assert needed.value.record is not None
    needed.value.record.parent.mkdir(parents=True, exist_ok=True)
    needed.value.record.touch()


def replaced(path: Path, text: str) -> Callable[[], None]:
    def do() -> None:
        path.unlink()
        path.write_text(text)

    return do


def linked(path: Path, target: Path) -> Callable[[], None]:
    def do() -> None:
        path.unlink()
        path.symlink_to(target)

    return do


def exchanges(theirs: Path, settings: Settings) -> Iterator[tuple[Path, Callable[[], None]]]:
    recipe, script = theirs / "their.yaml", theirs / "mods" / "m" / "run.sh"
    template, mine = theirs / "a.jinja", settings.config_dir / "recipes" / "mine.yaml"
    private = theirs.parent / "key"
    private.write_text(EVIL)
    yield recipe, replaced(recipe, HEAD + ASKING.replace("two", EVIL))
    yield recipe, linked(recipe, mine)
    yield script, replaced(script, f"{EVIL}\n")
    yield script, linked(script, private)
    yield template, replaced(template, EVIL)
    yield template, linked(template, private)


@pytest.mark.parametrize("number", range(6))
def test_what_runs_is_what_was_consented_to(
    theirs: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, recipe = load_settings(), theirs / "their.yaml"
    consent(recipe, settings)
    asked_about = used(recipe, settings)
    path, do = list(exchanges(theirs, settings))[number]
    before = path.read_text()
    for after in itertools.count(1):
        assert after < MOST_READS
        exchange = Exchange(theirs, do, after)
        with monkeypatch.context() as patched:
            spy_on_reads(patched, exchange)
            with contextlib.suppress(SparkdeployError):
                assert used(recipe, settings) in {asked_about, own_recipe(settings)}
        replaced(path, before)()
        if exchange.opened < after:
            break
    assert after > 3, "nothing was exchanged"


@pytest.mark.parametrize("after", range(1, 4))
def test_a_strangers_recipe_does_not_become_ones_own_by_a_link_behind_it(
    theirs: Path, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, recipe = load_settings(), theirs / "their.yaml"
    mine = settings.config_dir / "recipes" / "mine.yaml"
    spy_on_reads(monkeypatch, Exchange(theirs, linked(recipe, mine), after))
    with pytest.raises(SparkdeployError):
        used(recipe, settings)


def own_recipe(settings: Settings) -> str:
    return used(settings.config_dir / "recipes" / "mine.yaml", settings)


def spy_on_reads(patched: pytest.MonkeyPatch, exchange: Exchange) -> None:
    really = stored_json.open_regular
    patched.setattr(stored_json, "open_regular", lambda path: exchange(path, really))
    unlinked = stored_json.read_unlinked

    def read_unlinked(path: Path, limit_bytes: int) -> bytes:
        content = unlinked(path, limit_bytes)
        exchange(path, lambda it: it.open("rb")).close()
        return content

    patched.setattr("sparkdeploy.plan.folders.read_unlinked", read_unlinked)


def test_files_of_the_library_are_the_only_ones_own(theirs: Path) -> None:
    shelf = library(load_settings())
    resolved = resolve(Request(str(theirs / "their.yaml"), ("allow_unsafe=true",)), load_settings())
    assert shelf.foreign_files(resolved.origins) == {str(theirs / "their.yaml")}
