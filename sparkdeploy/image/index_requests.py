"""One GET of a package index: its login stays with its host, and redirects are counted.

Packages may lie on other hosts than their index: those get no login, of ~/.netrc neither.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit, urlunsplit

import requests
from requests.auth import HTTPBasicAuth
from requests.utils import get_auth_from_url

from sparkdeploy.bounded_http import BoundedSession, without_login
from sparkdeploy.checkpoint.answers import (
    REDIRECTS_LIMIT,
    is_followed,
    is_same_host,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Login = Callable[[requests.PreparedRequest], requests.PreparedRequest]


SHOWN_CHARACTERS = 200


@contextlib.contextmanager
def index_answer(
    session: BoundedSession,
    url: str,
    index_url: str,
    **how: Any,  # noqa: ANN401 - what `Session.get` takes
) -> Iterator[requests.Response]:
    """Ask for an address that an index named, and close the answer when the block ends.

    Raises requests.RequestException for redirects without an end, to what is not HTTP, or from
    HTTPS to HTTP, and for what `Session.get` raises.
    """
    asked = without_userinfo(url)
    for _ in range(REDIRECTS_LIMIT):
        login = login_for(asked, index_url)
        with session.get(asked, auth=login, allow_redirects=False, stream=True, **how) as answer:
            if not answer.is_redirect:
                yield answer
                return
            target = _target(asked, answer.headers["Location"])
        asked = target
    raise requests.TooManyRedirects(f"more than {REDIRECTS_LIMIT} redirects")


def login_for(url: str, index_url: str) -> Login:
    """Return what adds the login of an index's address, to requests of its own host alone."""
    user, password = get_auth_from_url(index_url)
    if not user and not password:
        return without_login
    is_its_own = is_same_host(url, without_userinfo(index_url))
    return HTTPBasicAuth(user, password) if is_its_own else without_login


def without_userinfo(url: str) -> str:
    """Return an address without user and password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _target(asked: str, location: str) -> str:
    target = ""
    with contextlib.suppress(ValueError):
        target = without_userinfo(urljoin(asked, location))
    if not is_followed(asked, target):
        raise requests.exceptions.InvalidURL(
            f"it sends to {location[:SHOWN_CHARACTERS]!a}, which is not followed"
        )
    return target
