"""LiteLLM, Open WebUI, Prometheus and Grafana beside deployments: settings and Compose files."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkdeploy import yaml_text
from sparkdeploy.errors import UsageError
from sparkdeploy.export.compose_file import WRITTEN_BY, Export, ExportedFile, services_text
from sparkdeploy.node.container import LOG_DRIVER, LOG_SIZE
from sparkdeploy.plan.launch import bound_host
from sparkdeploy.recipe.answers import Task

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sparkdeploy.deploy.serving import ServedDeployment
    from sparkdeploy.settings import Hosts

SERVICES = Path(__file__).with_name("neighbours.yaml")
KEYS = "/run/keys"
NO_KEY = "none"
LITELLM_MODES = {
    Task.CHAT: "chat",
    Task.COMPLETIONS: "completion",
    Task.EMBEDDINGS: "embedding",
    Task.RERANK: "rerank",
    Task.TRANSCRIPTIONS: "audio_transcription",
}
"""LiteLLM has no name for other kinds, and no route."""
FROM_ENVIRONMENT = "os.environ/"
MASTER_KEY_VARIABLE = "LITELLM_MASTER_KEY"
GPU_PROGRAM = "gpu-textfile.sh"
START = "docker compose up -d"
UNCHECKED_LISTENER = (
    "a client does not look who listens on a deployment's port: while nothing of yours does, "
    "another user of that machine can, and would get what is sent, the key too"
)
"""What sparkdeploy's own requests are guarded against, and those of what is exported are not."""


def litellm_export(
    served: Sequence[ServedDeployment],
    port: int,
    hosts: Hosts,
    *,
    user: str,
    key_file: Path,
    is_public: bool = False,
) -> Export:
    """Return what puts these deployments behind one port, each by its own names.

    `user` is the UID:GID that may read the key files; `key_file` has what clients have to show.
    Raises UsageError where one name would mean two models.
    """
    _refuse_ambiguous(served)
    variables = {item.name: f"SPARKDEPLOY_KEY_{number}" for number, item in enumerate(served)}
    config: dict[str, Any] = {
        "model_list": [
            _litellm_entry(item, model, variables[item.name])
            for item in served
            for model in item.models
        ],
        # A request that failed is not sent again by itself: the machine may have too much to do.
        "litellm_settings": {"request_timeout": 3600, "telemetry": False},
        "router_settings": {"num_retries": 0, "disable_cooldowns": True},
    }
    # Keys are read from files when it starts: `docker inspect` shows none.
    keys = [(variables[it.name], it.key_file, f"{KEYS}/{it.name}") for it in served if it.key_file]
    # LiteLLM does not start without one. No deployment can be called as its file is: a name begins
    # with a letter or a digit.
    config["general_settings"] = {"master_key": FROM_ENVIRONMENT + MASTER_KEY_VARIABLE}
    keys.append((MASTER_KEY_VARIABLE, key_file, f"{KEYS}/.gateway"))
    service = _service(
        "litellm",
        hosts,
        [_mount(file, target) for _, file, target in keys],
        keys="".join(f'export {name}="$(cat {target})"; ' for name, _, target in keys),
        user=user,
        host=bound_host(is_public=is_public),
        port=port,
    )
    text = _marked("litellm", yaml_text.dump(config), UNCHECKED_LISTENER)
    compose = _marked("litellm", services_text({"litellm": service}))
    files = (ExportedFile("litellm.yaml", text), ExportedFile("compose.yaml", compose))
    return Export(files, next_step=START)


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


def _litellm_entry(served: ServedDeployment, model: str, variable: str) -> dict[str, Any]:
    return {
        "model_name": model,
        "litellm_params": {
            "model": f"hosted_vllm/{model}",
            "api_base": f"http://127.0.0.1:{served.port}/v1",
            "api_key": FROM_ENVIRONMENT + variable if served.key_file else NO_KEY,
        },
        "model_info": {
            **({"mode": mode} if (mode := LITELLM_MODES.get(served.answers.main)) else {}),
            **({"max_input_tokens": served.context_tokens} if served.context_tokens else {}),
        },
    }


def open_webui_export(
    served: Sequence[ServedDeployment], port: int, hosts: Hosts, *, is_public: bool
) -> Export:
    """Return its Compose file; deployments that write no text are none to talk to."""
    talking = [item for item in served if item.answers.writes_text]
    keys = [f"$(cat {KEYS}/{it.name})" if it.key_file is not None else NO_KEY for it in talking]
    mounts = [_mount(it.key_file, f"{KEYS}/{it.name}") for it in talking if it.key_file is not None]
    service = _service(
        "open-webui",
        hosts,
        [*mounts, "open-webui:/app/backend/data"],
        host=bound_host(is_public=is_public),
        port=port,
        keys=";".join(keys),
        urls=";".join(f"http://127.0.0.1:{it.port}/v1" for it in talking),
    )
    text = services_text({"open-webui": service}, volumes={"open-webui": {}})
    compose = ExportedFile("compose.yaml", _marked("open-webui", text, UNCHECKED_LISTENER))
    return Export((compose,), next_step=START)


def prometheus_export(served: Sequence[ServedDeployment], user: str, hosts: Hosts) -> Export:
    """Return its configuration, rules and Compose file, and the program that reads the GPU.

    `user` is the UID:GID that may read the key files.
    """
    config = {
        "global": {"scrape_interval": "5s", "evaluation_interval": "15s"},
        "rule_files": ["rules.yml"],
        "scrape_configs": [
            *map(_scrape_job, served),
            {"job_name": "node", "static_configs": [{"targets": ["127.0.0.1:9100"]}]},
        ],
    }
    # Where they are on the machine: one configuration for Prometheus in a container or not.
    keys = [_mount(it.key_file, str(it.key_file)) for it in served if it.key_file is not None]
    services = {
        "prometheus": _service("prometheus", hosts, [*keys, _data("/prometheus")], user=user),
        "node-exporter": _service("node-exporter", hosts),
    }
    text = _marked("prometheus", yaml_text.dump(config), UNCHECKED_LISTENER)
    files = (
        ExportedFile("prometheus.yml", text),
        _shipped("rules.yml"),
        ExportedFile("compose.yaml", _marked("prometheus", services_text(services))),
        _shipped(GPU_PROGRAM, is_program=True),
    )
    return Export(files, ("data", "textfile"), user, f"{START}; ./{GPU_PROGRAM} &")


def _scrape_job(served: ServedDeployment) -> dict[str, Any]:
    """Return one deployment's job: a key is read from its file at each scrape, and is none here."""
    labels = {"deployment": served.name}
    job: dict[str, Any] = {
        "job_name": f"vllm-{served.name}",
        "static_configs": [{"targets": [f"127.0.0.1:{served.port}"], "labels": labels}],
    }
    if served.key_file is not None:
        job["authorization"] = {"type": "Bearer", "credentials_file": str(served.key_file)}
    return job


def grafana_export(user: str, hosts: Hosts) -> Export:
    """Return the dashboard, and what Grafana reads and Compose starts; `user` is a UID:GID."""
    service = _service("grafana", hosts, [_data("/var/lib/grafana")], user=user)
    shipped = map(_shipped, ("dashboard.json", "datasources.yaml", "dashboards.yaml"))
    compose = ExportedFile("compose.yaml", _marked("grafana", services_text({"grafana": service})))
    return Export((*shipped, compose), ("data",), user, START)


def _service(
    name: str,
    hosts: Hosts,
    volumes: Iterable[object] = (),
    **values: object,
) -> dict[str, Any]:
    """Return a service on the machine's own network, where deployments listen, without rights."""
    content = yaml_text.load_file(SERVICES)[name]
    own = _filled(content, {**asdict(hosts), **values})
    own["volumes"] += volumes
    return {
        "image": own.pop("image"),
        "network_mode": "host",
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "restart": "unless-stopped",
        "logging": {"driver": LOG_DRIVER, "options": LOG_SIZE},
        **own,
    }


def _filled(value: Any, values: dict[str, object]) -> Any:  # noqa: ANN401 - YAML content
    if isinstance(value, dict):
        return {name: _filled(item, values) for name, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, values) for item in value]
    return value.format_map(values) if isinstance(value, str) else value


def _mount(source: Path | None, target: str) -> dict[str, object]:
    return {"type": "bind", "source": str(source), "target": target, "read_only": True}


def _data(target: str) -> dict[str, object]:
    return {"type": "bind", "source": "./data", "target": target}


def _shipped(path: str, *, is_program: bool = False) -> ExportedFile:
    """Return a file of this package that is exported as it is."""
    return ExportedFile(path, SERVICES.with_name(path).read_text(encoding="utf-8"), is_program)


def _marked(command: str, text: str, note: str = "") -> str:
    """Return a YAML file with a head by which a later export knows that it may replace it."""
    return f"# {WRITTEN_BY} {command}`.\n" + (f"# Known: {note}.\n" if note else "") + text
