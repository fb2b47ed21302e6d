"""Models in folders, and the recipes that `new` makes of them."""

from __future__ import annotations

import json
from pathlib import Path

from sparkdeploy import yaml_text
from tests.families import config
from tests.families.checkpoints import plain, write
from tests.unit.program import Run


def made(run: Run, *words: str) -> dict[str, object]:
    told: dict[str, object] = run.answer("new", "mine", *words, "--json")
    content = yaml_text.load_file(Path(str(told["path"])))
    assert isinstance(content, dict)
    return {**content, **told}


def folder_of(tmp_path: Path, family: str, **more: object) -> Path:
    return folder_at(tmp_path / "model", family, **more)


def folder_at(folder: Path, family: str, **more: object) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**config(family), **more}))
    (folder / "generation_config.json").write_text('{"temperature": 0.6, "top_k": true}')
    return folder


def weights_of(tmp_path: Path, **more: object) -> Path:
    """Return a small model of Llama's with its weights."""
    told = {key: value for key, value in (config("llama") | more).items() if value is not None}
    return write(tmp_path / "model", plain("llama"), told)
