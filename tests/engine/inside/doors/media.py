"""Runs inside an engine's image: what vLLM fetches for a client who names an address.

The argument is JSON: by name, an argument list for `vllm serve` and kinds of addresses. Prints
JSON: what came of each, and what a server on the container's loopback was asked for meanwhile.
"""

import asyncio
import base64
import http.server
import io
import json
import sys
import threading
from collections.abc import Callable

from PIL import Image
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.multimodal.media.connector import MediaConnector
from vllm.utils.argparse_utils import FlexibleArgumentParser

MEDIA = ("image", "audio", "video")
asked = []


def picture() -> bytes:
    made = io.BytesIO()
    Image.new("RGB", (2, 2), "red").save(made, "PNG")
    return made.getvalue()


class Service(http.server.BaseHTTPRequestHandler):
    """A service of the host that trusts whoever reaches it."""

    def do_GET(self) -> None:
        asked.append(f"{self.headers['Host'].partition(':')[0]}{self.path}")
        if self.path == "/redirect":
            self.send_response(302)
            port = self.server.server_address[1]
            self.send_header("Location", f"http://127.0.0.2:{port}/secret.png")
            self.end_headers()
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(picture())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def connector(argv: list[str]) -> MediaConnector:
    """As the server makes it from these arguments."""
    parsed = make_arg_parser(FlexibleArgumentParser()).parse_args(argv[2:])
    return MediaConnector(allowed_media_domains=parsed.allowed_media_domains)


def attempt(fetch: Callable[[str], object], url: str) -> str:
    try:
        found = fetch(url)
        if asyncio.iscoroutine(found):
            found = asyncio.run(found)
    except Exception as error:  # noqa: BLE001 - whatever ends it is the answer
        return f"{type(error).__name__}: {error}"
    return f"fetched {type(found).__name__}"


def addresses(port: int) -> dict[str, str]:
    return {
        "loopback": f"http://127.0.0.1:{port}/secret",
        "name": f"http://localhost:{port}/secret",
        "number": f"http://2130706433:{port}/secret",
        "login": f"http://none.invalid@127.0.0.1:{port}/secret",
        "backslash": f"http://127.0.0.1:{port}\\@none.invalid/secret",
        "capitals": f"HTTP://127.0.0.1:{port}/secret",
        "redirect": f"http://127.0.0.1:{port}/redirect",
        "file": "file:///etc/passwd",
        "data": "data:image/png;base64," + base64.b64encode(picture()).decode(),
    }


def results(argv: list[str], kinds: tuple[str, ...], port: int) -> dict[str, str]:
    made = connector(argv)
    ways = [
        getattr(made, f"fetch_{medium}{suffix}") for medium in MEDIA for suffix in ("", "_async")
    ]
    return {
        f"{fetch.__name__} {kind}": attempt(fetch, url)
        for fetch in ways
        for kind, url in addresses(port).items()
        if kind in kinds and ("image" in fetch.__name__ or kind != "data")
    }


def main() -> None:
    service = http.server.ThreadingHTTPServer(("0.0.0.0", 0), Service)
    threading.Thread(target=service.serve_forever, daemon=True).start()
    told = {}
    for name, (argv, kinds) in json.loads(sys.argv[1]).items():
        asked.clear()
        found = results(argv, kinds, service.server_address[1])
        told[name] = {"results": found, "asked": list(asked)}
    print(json.dumps(told))


main()
