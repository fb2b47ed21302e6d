"""`export compose`: what it says of a file that holds values of variables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sparkdeploy.deploy import request
from sparkdeploy.deploy.request import Request
from sparkdeploy.export.deployment import export_compose
from sparkdeploy.settings import load_settings
from tests.fakes.machines import build

if TYPE_CHECKING:
    from sparkdeploy.recipe.load import Library


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (
            "serve.env={A: hush, NCCL_DEBUG: WARN, B: x}",
            "warning: the file has the values of A and NCCL_DEBUG and B: keep it at mode 0600\n",
        ),
        ("limits.stall_s=99", ""),
    ],
)
def test_who_gets_a_file_with_values_is_told_to_keep_it(
    monkeypatch: pytest.MonkeyPatch,
    shipped: Library,
    capsys: pytest.CaptureFixture[str],
    typed: str,
    said: str,
) -> None:
    monkeypatch.setattr(request, "draft_plan", build(monkeypatch, shipped, 1).draft)
    text = export_compose(Request("v2", (typed, "allow_unsafe=true")), load_settings())
    assert ("hush" in text) == bool(said)
    assert capsys.readouterr().err == said
