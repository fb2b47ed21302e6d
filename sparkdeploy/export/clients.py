"""A client's own settings for a deployment. A key is named by its file and is in none of them."""

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkdeploy import yaml_text
from sparkdeploy.deploy.nodes import resolve_name
from sparkdeploy.deploy.serving import ServedDeployment
from sparkdeploy.errors import UsageError
from sparkdeploy.export.client_names import Client
from sparkdeploy.export.neighbours import served_deployments
from sparkdeploy.image.templates import render
from sparkdeploy.recipe.answers import Task, curl_line
from sparkdeploy.settings import Settings

LOOPBACK = "127.0.0.1"
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\]")
NO_KEY = "none"
"""Most clients demand a key; a deployment without one takes any."""
CONTINUE_ROLES = {
    Task.CHAT: ("chat", "edit", "apply"),
    Task.COMPLETIONS: ("autocomplete",),
    Task.EMBEDDINGS: ("embed",),
    Task.RERANK: ("rerank",),
}
LONGEST_OUTPUT_TOKENS = 32_000
OUTPUT_SHARE = 4
"""A client asks for its output limit each time, and vLLM refuses what the prompt leaves no room
for: a quarter of the context is left to answers."""


PLACES = {
    Client.OPENAI: "the shell that starts the client",
    Client.OPENCODE: "opencode.json, or ~/.config/opencode/opencode.json",
    Client.CLAUDE_CODE: "FILE of `claude --settings FILE`",
    Client.CONTINUE: "~/.continue/config.yaml",
    Client.OPEN_WEBUI: "the shell before `open-webui serve`; one that has run before reads its own "
    "settings: Admin Panel > Settings > Connections takes the same",
    Client.CURL: "a shell",
}


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
    def place(self) -> str:
        """Where the settings go."""
        return PLACES[self.client]

    @property
    def settings(self) -> str:
        """The client's settings; UsageError where it has no use for them."""
        self._refuse_unusable()
        served, client = self.served, self.client
        cat_key = f"cat {shlex.quote(str(served.key_file))}"
        name = "".join(letter if letter.isalnum() else "_" for letter in served.name).upper()
        variable = f"SPARKDEPLOY_{name}"
        return render(
            Path(__file__).parent / "connect",
            f"{client.value}.j2",
            served=served,
            url=self.base_url,
            title=f"{served.model} ({served.name})",
            provider=f"sparkdeploy-{served.name}",
            output_tokens=min(LONGEST_OUTPUT_TOKENS, (served.context_tokens or 0) // OUTPUT_SHARE),
            no_key=NO_KEY,
            cat_key=cat_key,
            key_for_shell=NO_KEY if served.key_file is None else f'"$({cat_key})"',
            curl=curl_line(self.base_url, served.answers.main, served.model, self.key_file),
            json=json.dumps,
            variable=variable,
            continue_settings=_continue_settings(served, self.base_url, variable),
        )

    def _refuse_unusable(self) -> None:
        answers = self.served.answers
        can = {Client.CONTINUE: answers.main in CONTINUE_ROLES, Client.CURL: True}
        if not can.get(self.client, answers.writes_text or self.client is Client.OPENAI):
            raise UsageError(
                f"{self.served.name} answers {answers.describe()}, and {self.client.value} has no "
                "use for that",
                hint=f"sparkdeploy connect curl {self.served.name}",
            )
        if self.client is Client.OPENCODE and set(str(self.key_file)) & set('{}"\\\n'):
            raise UsageError(
                f"opencode cannot read a key from {str(self.key_file)!r}",
                hint="set SPARKDEPLOY_STATE_DIR",
            )

    def as_dict(self) -> dict[str, Any]:
        return {
            "deployment": self.served.name,
            "client": self.client.value,
            "base_url": f"{self.base_url}/v1",
            "model": self.served.model,
            "key_file": str(self.key_file) if self.key_file is not None else None,
            "context_tokens": self.served.context_tokens,
            "settings": self.settings,
            "place": self.place,
        }


def connect_client(
    client: Client, name: str | None, host: str, settings: Settings
) -> ClientConnection:
    """Return what a client has to be told; UsageError for a host that cannot reach it."""
    if not _HOST.fullmatch(host):
        raise UsageError(f"not a host name or address: {host!r}")
    chosen = resolve_name(name, ("connect", client.value))
    (served,) = served_deployments([chosen], "connect", settings)
    if host != LOOPBACK and served.key_file is None:
        raise UsageError(
            f"{served.name} listens on this machine alone",
            hint=f"from elsewhere: ssh -N -L {served.port}:{LOOPBACK}:{served.port} {host}, and "
            "the settings without --host; or deploy it with --public",
        )
    return ClientConnection(client, served, host)


def _continue_settings(served: ServedDeployment, url: str, variable: str) -> str:
    model: dict[str, Any] = {
        "name": f"{served.model} ({served.name})",
        "provider": "vllm",
        "model": served.model,
        "apiBase": f"{url}/v1",
        "apiKey": NO_KEY if served.key_file is None else f"${{{{ secrets.{variable} }}}}",
        "roles": list(CONTINUE_ROLES[served.answers.main]),
    }
    if served.context_tokens is not None and served.answers.writes_text:
        model["defaultCompletionOptions"] = {"contextLength": served.context_tokens}
    content = {"name": "sparkdeploy", "version": "1.0.0", "schema": "v1", "models": [model]}
    return yaml_text.dump(content)
