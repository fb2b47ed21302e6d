"""Web addresses: which ones are followed, and which ones get the hub's token."""

from urllib.parse import urlsplit

from urllib3.util import parse_url

_PORTS = {"http": 80, "https": 443}


def is_web_address(url: str) -> bool:
    """Whether a URL is http:// or https:// with a host that could be looked up."""
    try:
        host = parse_url(url).host or ""
        # The HTTP libraries do so on their way to a name server, and have no error for it.
        host.encode("idna")
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(host) and parts.port != 0
    except ValueError:
        return False


def is_followed(asked: str, target: str) -> bool:
    """Whether a redirect leads to a web address, and not from HTTPS to HTTP."""
    is_weaker = asked.startswith("https:") and urlsplit(target).scheme == "http"
    return is_web_address(target) and not is_weaker


def is_same_host(url: str, other: str) -> bool:
    """Whether both are on one host, port and scheme; False for what can be read in two ways."""
    origin = _origin(url)
    return origin is not None and origin == _origin(other)


def _origin(url: str) -> tuple[str, str, int] | None:
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None
    is_plain = set(parts.netloc).isdisjoint("@\\ \t\r\n") and parts.netloc.isascii()
    if port is None or not parts.hostname or not is_plain:
        return None
    return parts.scheme, parts.hostname, port


def authorization(url: str, endpoint: str, token: str | None) -> dict[str, str]:
    """Return the header with the hub's token for an address, and none for one of another host.

    Every request to a hub takes its token from here: an answer may name any address.
    """
    is_for_hub = token and is_same_host(url, endpoint)
    return {"Authorization": f"Bearer {token}"} if is_for_hub else {}
