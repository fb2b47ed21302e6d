"""What an earlier version left on one to three machines, put into the lab."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from sparkdeploy.node.container import ContainerFact
from tests.fakes.machines import build

if TYPE_CHECKING:
    import pytest

    from sparkdeploy.recipe.load import Library
    from tests.fakes.machines import Lab

FOLDER = Path(__file__).parent / "recordings"
SCENES = sorted(path.stem for path in FOLDER.glob("*.yaml"))


def upgraded(monkeypatch: pytest.MonkeyPatch, shipped: Library, scene: str) -> Lab:
    """The lab, with what was recorded; a container's text is its recorded id."""
    recorded = yaml.safe_load((FOLDER / f"{scene}.yaml").read_text(encoding="utf-8"))
    lab = build(monkeypatch, shipped, len(recorded["nodes"]))
    for engine, containers in zip(lab.engines, recorded["nodes"].values(), strict=True):
        engine.facts = {item["id"]: _fact(item) for item in containers}
    lab.record.note("main", tuple(recorded["note"]))
    # What these containers log was not recorded.
    for module in ("recovery", "watch"):
        monkeypatch.setattr(f"sparkdeploy.deploy.{module}.verify_part", lambda *_: None)
    return lab


def _fact(item: dict[str, Any]) -> ContainerFact:
    return ContainerFact(
        container_id=item["id"],
        name=item["name"],
        image_id=item["image_id"],
        state=item["state"],
        labels={**item["labels"], "test.text": item["id"]},
        exit_code=item["exit_code"],
        # The lab counts its own ones 0001, 0002...: these are older.
        created_at=f"0000 {item['created_at']}",
        started_at=item["started_at"],
        finished_at=item["finished_at"],
    )
