"""`new --from` alone: a recipe to edit, which is its base until somebody edits it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from sparkdeploy.authoring.new_model import KNOBS, changing_text
from sparkdeploy.recipe.load import load_recipe
from sparkdeploy.settings import load_settings
from tests.unit.conftest import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path

    from sparkdeploy.recipe.load import Library
    from tests.unit.program import Run

OWN = {"name", "title", "extends", "source", "preview", "expect"}
SHIPPED = sorted(path.stem for path in (REPOSITORY / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("base", SHIPPED)
def test_with_every_line_taken_it_is_still_its_base(
    shipped: Library, tmp_path: Path, base: str
) -> None:
    recipe = load_recipe(shipped, base).recipe
    text = changing_text("mine", base, recipe)
    path = tmp_path / "mine.yaml"
    for written in (text, re.sub(r"^( *)# (\w+: )", r"\1\2", text, flags=re.MULTILINE)):
        path.write_text(written)
        made = load_recipe(shipped, str(path), ["allow_unsafe=true"]).recipe
        assert made.model_dump(exclude={*OWN, "allow_unsafe"}) == recipe.model_dump(
            exclude={*OWN, "allow_unsafe"}
        )
    assert written.count("#") < text.count("#") - sum(map(len, KNOBS.values()))


def test_knobs_have_their_present_values_and_units(run: Run) -> None:
    text = run("new", "mine", "--from", "v2").stdout
    assert re.search(r"^  # max_model_len: 262144 +# tokens: ", text, re.MULTILINE)
    assert re.search(r"^  # port: 8000 +# port: ", text, re.MULTILINE)
    assert re.search(r"^  # memory_floor_gib: 4.0 +# GiB: ", text, re.MULTILINE)
    assert text.startswith("# yaml-language-server: $schema=file:///")
    assert text.endswith("`sparkdeploy plan mine` says what `up` would do\n")
    assert (load_settings().config_dir / "recipes" / "mine.yaml").is_file()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("mine",), 2, "--from RECIPE"),
        (("mine", "--from", "nothere"), 3, "there is no recipe nothere"),
        (("Mine", "--from", "v2"), 2, "is no recipe name"),
        (("v2", "--from", "v2"), 3, "v2 is a recipe that is shipped"),
    ],
)
def test_what_cannot_be_written_is_said(
    run: Run, words: tuple[str, ...], code: int, said: str
) -> None:
    done = run("new", *words)
    assert (done.returncode, said in done.stderr) == (code, True)
    assert not (load_settings().config_dir / "recipes").exists()
