"""What of this machine a recipe from elsewhere has mounted: asked by where its links lead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sparkdeploy.deploy.request import Request, resolve
from sparkdeploy.errors import ConsentNeededError
from sparkdeploy.settings import load_settings

if TYPE_CHECKING:
    from pathlib import Path

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
