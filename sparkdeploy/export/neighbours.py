"""LiteLLM, Open WebUI, Prometheus and Grafana beside deployments: settings and Compose files."""

import os
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sparkdeploy import atomic_files, yaml_text
from sparkdeploy.deploy.deployments import refuse_as_worker, require_deployment
from sparkdeploy.deploy.nodes import connect, resolve_names
from sparkdeploy.deploy.serving import ServedDeployment, served_by
from sparkdeploy.errors import NodeError, UsageError
from sparkdeploy.export.compose_file import WRITTEN_BY, Export, ExportedFile, services_text
from sparkdeploy.node.container import LOG_DRIVER, LOG_SIZE
from sparkdeploy.plan.launch import bound_host
from sparkdeploy.recipe.answers import Task
from sparkdeploy.settings import Hosts, Settings
from sparkdeploy.stored_json import open_regular
from sparkdeploy.terminal.console import console

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
    """Return what puts these deployments behind one port; `user` may read the key files."""
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
    """Return its configuration, rules and Compose file, and the program that reads the GPU."""
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


KEY_BYTES = 32
GATEWAY_KEY_FILE = ".litellm"
"""Beside the deployments' keys, of which none can be called so."""
LONGEST_MARK_BYTES = 4096


def served_deployments(
    names: Sequence[str], command: str, settings: Settings
) -> tuple[ServedDeployment, ...]:
    """Return the deployments of these names; without names all of the user's own."""
    with connect(settings) as host:
        found = [require_deployment(host, name) for name in resolve_names(names, command.split())]
    for item in found:
        refuse_as_worker(item)
    return tuple(served_by(item.current, settings) for item in found)


def export_litellm(
    names: Sequence[str], port: int, settings: Settings, *, is_public: bool
) -> Export:
    """Return LiteLLM's files; the key of its clients is made where there is none yet."""
    served = served_deployments(names, "export litellm", settings)
    if port in {item.port for item in served}:
        raise UsageError(f"port {port} is a deployment's", hint="another one: --port N")
    key_file = settings.state_dir / "keys" / GATEWAY_KEY_FILE
    export = litellm_export(
        served,
        port,
        settings.hosts,
        user=(user := _key_reader(served)),
        key_file=key_file,
        is_public=is_public,
    )
    _make_key(key_file)
    _give(key_file, user)
    console.info(f"its clients' key: {key_file}")
    return export


def export_open_webui(
    names: Sequence[str], port: int, settings: Settings, *, is_public: bool
) -> Export:
    served = served_deployments(names, "export open-webui", settings)
    return open_webui_export(served, port, settings.hosts, is_public=is_public)


def export_prometheus(names: Sequence[str], settings: Settings) -> Export:
    served = served_deployments(names, "export prometheus", settings)
    return prometheus_export(served, _key_reader(served), settings.hosts)


def export_grafana(settings: Settings) -> Export:
    return grafana_export(_key_reader(()), settings.hosts)


def write_export(export: Export, folder: Path) -> None:
    """Write the files of an export; UsageError for what is in the way and not an export's."""
    try:
        _refuse_others(export, folder)
        for name in export.folders:
            (folder / name).mkdir(parents=True, exist_ok=True)
            _give(folder / name, export.user)
        folder.mkdir(parents=True, exist_ok=True)
        for file in export.files:
            path = folder / file.path
            atomic_files.write_text(path, file.text, 0o755 if file.is_program else 0o644)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written to: {error.strerror}") from error


def _refuse_others(export: Export, folder: Path) -> None:
    for file in export.files:
        path = folder / file.path
        if path.is_symlink() or (path.exists() and not _is_written_by_us(path)):
            raise UsageError(
                f"{path} is there and not written by sparkdeploy",
                hint="name another folder, or move it away",
            )


def _is_written_by_us(path: Path) -> bool:
    try:
        with open_regular(path) as file:
            return WRITTEN_BY.encode() in file.read(LONGEST_MARK_BYTES)
    except OSError:
        return False


def _make_key(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        return
    with os.fdopen(handle, "w") as file:
        # LiteLLM takes only keys that begin so.
        file.write(f"sk-{secrets.token_urlsafe(KEY_BYTES)}\n")


def _key_reader(served: Sequence[ServedDeployment]) -> str:
    """Return the UID:GID whose the keys are, or else who runs this."""
    files = [item.key_file for item in served if item.key_file is not None]
    statuses = [path.stat() for path in files if path.exists()]
    owners = {(status.st_uid, status.st_gid) for status in statuses}
    if len(owners) > 1:
        raise UsageError("the keys of these deployments belong to several users", hint="name some")
    uid, gid = owners.pop() if owners else (os.geteuid(), os.getegid())
    if os.geteuid() not in {uid, 0}:
        raise NodeError(f"the keys of these deployments are those of uid {uid}")
    return f"{uid}:{gid}"


def _give(path: Path, user: str) -> None:
    """Hand what root has made to who is to use it."""
    if os.geteuid() == 0:
        os.chown(path, *map(int, user.split(":")))
