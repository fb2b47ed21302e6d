"""A hub's token goes to the hub's own host, port and scheme, whatever address an answer names."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from types import SimpleNamespace

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy.checkpoint import hub_client, transfer
from sparkdeploy.checkpoint.hub import Hub, RetryError, authorization
from sparkdeploy.checkpoint.repo_files import RepoFacts, RepoFile
from sparkdeploy.errors import CheckpointError

HUB = "https://hub.example"
TOKEN = "hf_secret"
COMMIT = "a" * 40
FOREIGN = [
    *("https://evil.example/x", "http://hub.example/x", "https://hub.example:444/x"),
    *("https://hub.example.evil.example/x", "https://hub.example@evil.example/x"),
    *("https://evil.example\\@hub.example/x", "https://hub.example\\.evil.example/x"),
    *("//evil.example/x", "https://evil.example:443/hub.example", "https://[::1]/x", ""),
    *("https://sub.hub.example/x", "ftp://hub.example/x", "https://hub.example:x/", "https:///x"),
]


@pytest.mark.parametrize("address", FOREIGN)
def test_no_other_address_gets_it(address: str) -> None:
    assert authorization(address, HUB, TOKEN) == {}


@pytest.mark.parametrize("address", ["https://hub.example/x", "https://HUB.example:443/x?y"])
def test_the_hub_gets_it(address: str) -> None:
    assert authorization(address, HUB, TOKEN) == {"Authorization": f"Bearer {TOKEN}"}
    assert authorization(address, HUB, None) == {}


@given(st.text(max_size=30))
def test_nothing_before_the_hubs_name_lets_another_host_have_it(text: str) -> None:
    assert authorization(f"https://evil.example{text}", HUB, TOKEN) == {}


# An address without a host is joined to the one that was asked, the hub's own.
@pytest.mark.parametrize("address", [it for it in FOREIGN if it not in {"", "https:///x"}])
def test_a_redirect_leaves_it_behind_and_does_not_bring_it_back(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places, got = [address, f"{HUB}/back"], list[tuple[str, bool]]()

    def answer(request: httpx2.Request) -> httpx2.Response:
        got.append((str(request.url), "Authorization" in request.headers))
        return httpx2.Response(302, headers={"Location": places.pop(0)} if places else {})

    hub_client.prepare_client()
    client = hub_client.new_client(transport=httpx2.MockTransport(answer))
    monkeypatch.setattr(hub_client, "get_session", lambda: client)
    # Such as from HTTPS to HTTP.
    with contextlib.suppress(CheckpointError, RetryError):  # noqa: SIM117 - it may raise before
        with hub_client.open_file(Hub(HUB, tmp_path, TOKEN), "a/b", "x", f"{HUB}/x", None):
            pass
    assert got[0] == (f"{HUB}/x", True)
    assert not any(has_token for _, has_token in got[1:])


@pytest.mark.parametrize("route", [it for it in FOREIGN if it])
def test_a_xet_refresh_route_elsewhere_does_not_get_it(
    route: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library sends these headers to the route that the hub's answer names."""
    file = RepoFile("model.safetensors", 3, "b" * 64, None)
    facts = RepoFacts("org/name", "main", COMMIT, None, (file,))
    bringing = transfer.Transfer(
        Hub(HUB, tmp_path, TOKEN), facts, threading.Event(), lambda _bytes: None
    )
    named = SimpleNamespace(
        commit_hash=COMMIT,
        etag=file.sha256,
        size=3,
        location=f"{HUB}/blob",
        xet_file_data=SimpleNamespace(file_hash="c" * 64, refresh_route=route),
    )
    monkeypatch.setattr(transfer, "get_hf_file_metadata", lambda *_args, **_more: named)
    try:
        described = bringing._describe(file)
    except CheckpointError:
        return
    assert described.xet_file_data is not None
    sent = bringing._headers(described.xet_file_data.refresh_route)
    assert TOKEN not in str(sent)
