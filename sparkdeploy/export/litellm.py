"""LiteLLM and Open WebUI before deployments: configuration, and their Compose files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkdeploy.errors import UsageError
from sparkdeploy.export.compose_file import (
    UNCHECKED_LISTENER,
    Export,
    compose_of,
    image_of,
    neighbour_service,
    read_only,
    settings_of,
)
from sparkdeploy.plan.launch import bound_host

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from sparkdeploy.deploy.serving import ServedDeployment
    from sparkdeploy.settings import Hosts

CONFIG_FILE = "litellm.yaml"
CONFIG_TARGET = "/etc/litellm/litellm.yaml"
KEYS_TARGET = "/run/keys"
GATEWAY_KEY = "gateway"
MASTER_KEY_VARIABLE = "LITELLM_MASTER_KEY"
FROM_ENVIRONMENT = "os.environ/"
NO_KEY = "none"
REQUEST_TIMEOUT_S = 3600
_LIVES = (
    "import http.client as c; h = c.HTTPConnection('127.0.0.1', {port}, timeout=5); "
    "h.request('GET', '/health/liveliness'); raise SystemExit(h.getresponse().status != 200)"
)


@dataclass(frozen=True, slots=True)
class Gateway:
    port: int
    user: str
    """UID:GID that may read the key files."""
    key_file: Path | None
    """What its clients have to show; None where it asks nobody."""
    is_public: bool = False


def needs_key(served: Sequence[ServedDeployment], *, is_public: bool) -> bool:
    """Say whether its clients need a key: nothing that has one is opened by a way around it."""
    return is_public or any(map(_has_key, served))


def litellm_export(served: Sequence[ServedDeployment], gateway: Gateway, hosts: Hosts) -> Export:
    """Return what puts these deployments behind one port, each by its own names.

    Raises UsageError where one name would mean two models.
    """
    _refuse_ambiguous(served)
    config = settings_of("litellm", CONFIG_FILE, _config(served, gateway), note=UNCHECKED_LISTENER)
    service = _service(served, gateway, image_of("litellm", hosts))
    compose = compose_of("litellm", {"litellm": service})
    return Export((config, compose), next_step="docker compose up -d")


def _refuse_ambiguous(served: Sequence[ServedDeployment]) -> None:
    """Copies of one recipe may share a name, and the requests for it; others may not."""
    owners: dict[str, ServedDeployment] = {}
    for item in served:
        for model in item.models:
            if model.startswith(FROM_ENVIRONMENT):
                raise UsageError(f"LiteLLM would take the name {model} for a variable's")
            other = owners.setdefault(model, item)
            if other.recipe != item.recipe:
                raise UsageError(
                    f"{other.name} and {item.name} are both called {model}",
                    hint=f"deploy one anew: --set model.served_name={item.name}",
                )


def _config(served: Sequence[ServedDeployment], gateway: Gateway) -> dict[str, Any]:
    content: dict[str, Any] = {
        "model_list": [entry for number, it in enumerate(served) for entry in _entries(it, number)],
        # A request that failed is not sent again by itself: the machine may have too much to do.
        "litellm_settings": {"request_timeout": REQUEST_TIMEOUT_S, "telemetry": False},
        "router_settings": {"num_retries": 0, "disable_cooldowns": True},
    }
    if gateway.key_file is not None:
        content["general_settings"] = {"master_key": f"{FROM_ENVIRONMENT}{MASTER_KEY_VARIABLE}"}
    return content


def _entries(served: ServedDeployment, number: int) -> Iterator[dict[str, Any]]:
    for model in served.models:
        yield {
            "model_name": model,
            "litellm_params": {
                "model": f"hosted_vllm/{model}",
                "api_base": f"http://127.0.0.1:{served.port}/v1",
                "api_key": f"{FROM_ENVIRONMENT}{_variable(number)}" if served.key_file else NO_KEY,
            },
            "model_info": {
                "mode": "chat" if served.writes_text else "embedding",
                **({"max_input_tokens": served.context_tokens} if served.context_tokens else {}),
            },
        }


def _service(served: Sequence[ServedDeployment], gateway: Gateway, image: str) -> dict[str, Any]:
    """Keys are read from files when it starts: `docker inspect` shows none."""
    keys = {_variable(number): it for number, it in enumerate(served) if it.key_file is not None}
    targets = {variable: f"{KEYS_TARGET}/{item.name}" for variable, item in keys.items()}
    mounts = [
        read_only(f"./{CONFIG_FILE}", CONFIG_TARGET),
        *map(_key_mount, keys.values()),
    ]
    if gateway.key_file is not None:
        # No deployment can be called so: a name begins with a letter or a digit.
        target = f"{KEYS_TARGET}/.{GATEWAY_KEY}"
        targets[MASTER_KEY_VARIABLE] = target
        mounts.append(read_only(str(gateway.key_file), target))
    exports = "".join(f'export {name}="$(cat {path})"; ' for name, path in targets.items())
    command = (
        f"exec litellm --config {CONFIG_TARGET} "
        f"--host {bound_host(is_public=gateway.is_public)} --port {gateway.port}"
    )
    return neighbour_service(
        image,
        user=gateway.user,
        entrypoint=["sh", "-c", exports + command],
        environment={"HOME": "/tmp", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},  # noqa: S108 - there
        volumes=mounts,
        healthcheck={
            "test": ["CMD", "python", "-I", "-c", _LIVES.format(port=gateway.port)],
            "interval": "30s",
            "timeout": "10s",
            "start_period": "60s",
        },
    )


def _has_key(served: ServedDeployment) -> bool:
    return served.key_file is not None


def _key_mount(served: ServedDeployment) -> dict[str, Any]:
    return read_only(str(served.key_file), f"{KEYS_TARGET}/{served.name}")


def _variable(number: int) -> str:
    return f"SPARKDEPLOY_KEY_{number}"


def open_webui_export(
    served: Sequence[ServedDeployment], port: int, hosts: Hosts, *, is_public: bool
) -> Export:
    """Return its Compose file; deployments that write no text are none to talk to."""
    talking = [item for item in served if item.writes_text]
    keys = ";".join(
        f"$(cat {KEYS_TARGET}/{item.name})" if item.key_file is not None else NO_KEY
        for item in talking
    )
    service = neighbour_service(
        image_of("open-webui", hosts),
        # Its root reads the keys of whoever deployed, and has no other right.
        cap_add=["DAC_OVERRIDE"],
        entrypoint=["bash", "-c", f'export OPENAI_API_KEYS="{keys}"; exec bash start.sh'],
        environment={
            "HOST": bound_host(is_public=is_public),
            "PORT": str(port),
            "ENABLE_OLLAMA_API": "False",
            "OPENAI_API_BASE_URLS": ";".join(f"http://127.0.0.1:{it.port}/v1" for it in talking),
        },
        volumes=[*map(_key_mount, filter(_has_key, talking)), "open-webui:/app/backend/data"],
    )
    compose = compose_of(
        "open-webui",
        {"open-webui": service},
        note=UNCHECKED_LISTENER,
        volumes={"open-webui": {}},
    )
    return Export((compose,), next_step="docker compose up -d")
