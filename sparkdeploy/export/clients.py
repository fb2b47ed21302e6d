"""A client's own settings for a deployment. A key is named by its file and is in none of them."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkdeploy import yaml_text
from sparkdeploy.deploy.nodes import resolve_name
from sparkdeploy.errors import UsageError
from sparkdeploy.export.client_names import Client
from sparkdeploy.export.companions import served_deployments
from sparkdeploy.server.pooling import CHAT, example_body

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sparkdeploy.deploy.serving import ServedDeployment
    from sparkdeploy.settings import Settings

LOOPBACK = "127.0.0.1"
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\]")
NO_KEY = "none"
"""Most clients demand a key; a deployment without one takes any."""
EMBEDDINGS = "/v1/embeddings"
LONGEST_OUTPUT_TOKENS = 32_000
OUTPUT_SHARE = 4
"""A client asks for its output limit each time, and vLLM refuses what the prompt leaves no room
for: a quarter of the context is left to answers."""


@dataclass(frozen=True, slots=True)
class ClientSettings:
    text: str
    place: str


@dataclass(frozen=True, slots=True)
class ClientConnection:
    client: Client
    served: ServedDeployment
    host: str
    """What the client calls this machine."""

    @property
    def base_url(self) -> str:
        return f"http://{self.host}:{self.served.port}"

    @property
    def key_file(self) -> Path | None:
        return self.served.key_file

    @property
    def settings(self) -> ClientSettings:
        """Return the client's settings.

        Raises UsageError for a client that needs words of a model that writes none, and for the
        name of a key file that the client would not read as it is.
        """
        if not self.served.writes_text and self.client in {Client.OPENCODE, Client.CLAUDE_CODE}:
            raise UsageError(
                f"{self.served.name} writes no text, and {self.client.value} needs a model that "
                "does"
            )
        return _SETTINGS[self.client](self)

    def as_dict(self) -> dict[str, Any]:
        settings = self.settings
        return {
            "deployment": self.served.name,
            "client": self.client.value,
            "base_url": f"{self.base_url}/v1",
            "model": self.served.model,
            "key_file": str(self.key_file) if self.key_file is not None else None,
            "context_tokens": self.served.context_tokens,
            "settings": settings.text,
            "place": settings.place,
        }


def connect_client(
    client: Client, name: str | None, host: str, settings: Settings
) -> ClientConnection:
    """Return what a client has to be told; without a name of the only deployment.

    Raises UsageError for a host that is none, and for another host than this machine where the
    deployment listens on this machine alone.
    """
    if not _HOST.fullmatch(host):
        raise UsageError(f"{host!r} is no host name or address")
    chosen = resolve_name(name, ("connect", client.value))
    (served,) = served_deployments([chosen], "connect", settings)
    if host != LOOPBACK and served.key_file is None:
        raise UsageError(
            f"{served.name} listens on this machine alone",
            hint=f"from elsewhere: ssh -N -L {served.port}:{LOOPBACK}:{served.port} {host}, and "
            "the settings without --host; or deploy it with --public",
        )
    return ClientConnection(client, served, host)


def _openai(way: ClientConnection) -> ClientSettings:
    text = _variables(way, "OPENAI_BASE_URL")
    return ClientSettings(text, "the shell that starts the client")


def _open_webui(way: ClientConnection) -> ClientSettings:
    text = f"export ENABLE_OPENAI_API=true\n{_variables(way, 'OPENAI_API_BASE_URL')}"
    place = "the shell before `open-webui serve`; one that has run before reads its own settings: "
    return ClientSettings(text, place + "Admin Panel > Settings > Connections takes the same")


def _variables(way: ClientConnection, address: str) -> str:
    return (
        f"export {address}={way.base_url}/v1\n"
        f"export OPENAI_API_KEY={_key_for_shell(way)}\n"
        f"# model: {way.served.model}\n"
    )


def _opencode(way: ClientConnection) -> ClientSettings:
    served, provider = way.served, f"sparkdeploy-{way.served.name}"
    model: dict[str, Any] = {"name": f"{served.model} ({served.name})"}
    if served.context_tokens is not None:
        output_tokens = _output_tokens(served.context_tokens)
        model["limit"] = {"context": served.context_tokens, "output": output_tokens}
    content = {
        "provider": {
            provider: {
                "npm": "@ai-sdk/openai-compatible",
                "name": f"{served.name} of sparkdeploy",
                "options": {"baseURL": f"{way.base_url}/v1", "apiKey": _key_for_opencode(way)},
                "models": {served.model: model},
            }
        },
        "model": f"{provider}/{served.model}",
    }
    return ClientSettings(_json(content), "opencode.json, or ~/.config/opencode/opencode.json")


def _claude_code(way: ClientConnection) -> ClientSettings:
    model = way.served.model
    names = ("MODEL", "DEFAULT_OPUS_MODEL", "DEFAULT_SONNET_MODEL", "DEFAULT_HAIKU_MODEL")
    env = {
        "ANTHROPIC_BASE_URL": way.base_url,
        **{f"ANTHROPIC_{name}": model for name in names},
        # Otherwise each request begins with another line, and no prefix is found in the cache.
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    if way.served.context_tokens is not None:
        limit_tokens = _output_tokens(way.served.context_tokens)
        env["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(limit_tokens)
    content: dict[str, Any] = {"env": env}
    if way.key_file is None:
        env["ANTHROPIC_AUTH_TOKEN"] = NO_KEY
    else:
        content["apiKeyHelper"] = f"cat {shlex.quote(str(way.key_file))}"
    return ClientSettings(_json(content), "FILE of `claude --settings FILE`")


def _continue(way: ClientConnection) -> ClientSettings:
    served = way.served
    variable = f"SPARKDEPLOY_{''.join(it if it.isalnum() else '_' for it in served.name).upper()}"
    model: dict[str, Any] = {
        "name": f"{served.model} ({served.name})",
        "provider": "vllm",
        "model": served.model,
        "apiBase": f"{way.base_url}/v1",
        "apiKey": NO_KEY if way.key_file is None else f"${{{{ secrets.{variable} }}}}",
        "roles": ["chat", "edit", "apply"] if served.writes_text else ["embed"],
    }
    if served.context_tokens is not None and served.writes_text:
        model["defaultCompletionOptions"] = {"contextLength": served.context_tokens}
    content = {"name": "sparkdeploy", "version": "1.0.0", "schema": "v1", "models": [model]}
    text = yaml_text.dump(content)
    if way.key_file is not None:
        line = f'printf "{variable}=%s\\n" "$(cat {shlex.quote(str(way.key_file))})"'
        text = f"# The key, once: {line} >> ~/.continue/.env\n{text}"
    return ClientSettings(text, "~/.continue/config.yaml")


def with_key(curl: str, key_file: Path | None) -> str:
    """Return curl's command with a key file's key, if there is one.

    The key goes through a pipe: what stands in arguments, every user of the machine reads.
    """
    if key_file is None:
        return curl
    header = 'header = "Authorization: Bearer %s"\\n'
    return f"printf '{header}' \"$(cat {shlex.quote(str(key_file))})\" | {curl} -K -"


def _curl(way: ClientConnection) -> ClientSettings:
    """Return a request to try, for a shell."""
    path = CHAT if way.served.writes_text else EMBEDDINGS
    body = json.dumps(example_body(path, way.served.model))
    words = ["curl", "-s", f"{way.base_url}{path}", "-H", "Content-Type: application/json"]
    command = with_key(shlex.join([*words, "-d", body]), way.key_file)
    return ClientSettings(f"{command}\n", "a shell")


def _output_tokens(context_tokens: int) -> int:
    return min(LONGEST_OUTPUT_TOKENS, context_tokens // OUTPUT_SHARE)


def _key_for_shell(way: ClientConnection) -> str:
    if way.key_file is None:
        return NO_KEY
    return f'"$(cat {shlex.quote(str(way.key_file))})"'


def _key_for_opencode(way: ClientConnection) -> str:
    if way.key_file is None:
        return NO_KEY
    path = str(way.key_file)
    if set(path) & set('{}"\\\n'):
        raise UsageError(
            f"opencode cannot read a key from {path!r}", hint="set SPARKDEPLOY_STATE_DIR"
        )
    return f"{{file:{path}}}"


def _json(content: object) -> str:
    return json.dumps(content, indent=2) + "\n"


_SETTINGS: dict[Client, Callable[[ClientConnection], ClientSettings]] = {
    Client.OPENAI: _openai,
    Client.OPENCODE: _opencode,
    Client.CLAUDE_CODE: _claude_code,
    Client.CONTINUE: _continue,
    Client.OPEN_WEBUI: _open_webui,
    Client.CURL: _curl,
}
