"""The login of an index goes to its own host; nothing of ~/.netrc goes anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import requests

from sparkdeploy.image.network import login_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def netrc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A login for every host, which the HTTP library sends by itself."""
    path = tmp_path / "netrc"
    path.write_text("machine index.test login n password n\ndefault login n password n\n")
    monkeypatch.setenv("NETRC", str(path))


@pytest.mark.parametrize("index", ["https://index.test/s", "https://a:b@index.test/s"])
def test_an_index_gets_its_own_login_and_nothing_of_netrc(index: str) -> None:
    url = "https://index.test/s/idna/"
    with requests.Session() as session:
        asked = session.prepare_request(requests.Request("GET", url, auth=login_of(index)))
    assert asked.headers.get("Authorization") == ("Basic YTpi" if "@" in index else None)
