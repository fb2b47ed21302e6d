"""Broken addresses, folders that cannot be read and greetings of a login are no bugs of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkdeploy import settings
from sparkdeploy.bench.endpoint import Access, server_at
from sparkdeploy.checkpoint.hub import is_web_address
from sparkdeploy.errors import RecipeError, UsageError
from tests.unit.program import Run


@pytest.mark.parametrize("url", ["http://[x", "http://x:port", "http://x:99999"])
def test_a_broken_address_is_a_mistake_in_usage(url: str) -> None:
    with pytest.raises(UsageError, match="not an address"):
        server_at(url, Access())


@pytest.mark.parametrize("url", ["http://[x", "https://[", "http://x]"])
def test_a_hub_with_a_bracket_is_no_address(url: str) -> None:
    assert not is_web_address(url)


def test_a_configuration_folder_that_cannot_be_read_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(path: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "lstat", refuse)
    with pytest.raises(RecipeError, match=r"config\.yaml cannot be read: Permission denied"):
        settings.load_settings({"SPARKDEPLOY_CONFIG_DIR": "/closed"})


@pytest.mark.parametrize(
    "line",
    [
        *("plan {missing}.yaml", "up {missing}.yaml", "recipe import {missing}.yaml"),
        *("checkpoint verify {missing}", "bench compare {missing}.json {missing}.json"),
        "bench report {missing}.json",
    ],
)
def test_a_missing_file_is_a_mistake_in_usage_everywhere(
    run: Run, tmp_path: Path, line: str
) -> None:
    done = run(*line.format(missing=tmp_path / "missing").split())
    assert done.returncode == 2
    assert "there is no" in done.stderr
