"""Prometheus for deployments, and Grafana with a dashboard over what it records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sparkdeploy.export.compose_file import (
    UNCHECKED_LISTENER,
    Export,
    compose_of,
    image_of,
    neighbour_service,
    read_only,
    settings_of,
    shipped_file,
    writable,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkdeploy.deploy.serving import ServedDeployment
    from sparkdeploy.settings import Hosts

CONFIG_FILE = "prometheus.yml"
RULES_FILE = "rules.yml"
GPU_PROGRAM = "gpu-textfile.sh"
TEXTFILES = "textfile"
DATA = "data"
PROMETHEUS_ADDRESS = "127.0.0.1:9090"
NODE_EXPORTER_ADDRESS = "127.0.0.1:9100"
SCRAPE_EVERY_S = 5
RECORD_EVERY_S = 15
COLLECTORS = ("loadavg", "meminfo", "pressure", "textfile", "vmstat")
"""What /proc tells of the whole machine also within a container: none of its files is mounted."""


def prometheus_export(served: Sequence[ServedDeployment], user: str, hosts: Hosts) -> Export:
    """Return its configuration, rules and Compose file, and the program that reads the GPU.

    `user` is the UID:GID that may read the key files.
    """
    services = {
        "prometheus": _prometheus(served, user, image_of("prometheus", hosts)),
        "node-exporter": _node_exporter(image_of("node-exporter", hosts)),
    }
    return Export(
        files=(
            settings_of("prometheus", CONFIG_FILE, _config(served), note=UNCHECKED_LISTENER),
            shipped_file(RULES_FILE),
            compose_of("prometheus", services),
            shipped_file(GPU_PROGRAM, is_program=True),
        ),
        folders=(DATA, TEXTFILES),
        user=user,
        next_step=f"docker compose up -d; ./{GPU_PROGRAM} &",
    )


def _config(served: Sequence[ServedDeployment]) -> dict[str, Any]:
    return {
        "global": {
            "scrape_interval": f"{SCRAPE_EVERY_S}s",
            "evaluation_interval": f"{RECORD_EVERY_S}s",
        },
        "rule_files": [RULES_FILE],
        "scrape_configs": [
            *(_job(item) for item in served),
            {"job_name": "node", "static_configs": [{"targets": [NODE_EXPORTER_ADDRESS]}]},
        ],
    }


def _job(served: ServedDeployment) -> dict[str, Any]:
    """Return one deployment's job: a key is read from its file at each scrape, and is none here."""
    labels = {"deployment": served.name}
    job: dict[str, Any] = {
        "job_name": f"vllm-{served.name}",
        "static_configs": [{"targets": [f"127.0.0.1:{served.port}"], "labels": labels}],
    }
    if served.key_file is not None:
        job["authorization"] = {"type": "Bearer", "credentials_file": str(served.key_file)}
    return job


def _prometheus(served: Sequence[ServedDeployment], user: str, image: str) -> dict[str, Any]:
    keys = [str(item.key_file) for item in served if item.key_file is not None]
    return neighbour_service(
        image,
        user=user,
        command=[
            f"--config.file=/etc/prometheus/{CONFIG_FILE}",
            "--storage.tsdb.path=/prometheus",
            "--storage.tsdb.retention.time=30d",
            f"--web.listen-address={PROMETHEUS_ADDRESS}",
        ],
        read_only=True,
        volumes=[
            read_only(f"./{CONFIG_FILE}", f"/etc/prometheus/{CONFIG_FILE}"),
            read_only(f"./{RULES_FILE}", f"/etc/prometheus/{RULES_FILE}"),
            # Where they are on the machine: one configuration for Prometheus in a container or not.
            *(read_only(path, path) for path in keys),
            writable(f"./{DATA}", "/prometheus"),
        ],
    )


def _node_exporter(image: str) -> dict[str, Any]:
    return neighbour_service(
        image,
        command=[
            f"--web.listen-address={NODE_EXPORTER_ADDRESS}",
            "--collector.disable-defaults",
            *(f"--collector.{name}" for name in COLLECTORS),
            f"--collector.textfile.directory=/{TEXTFILES}",
        ],
        read_only=True,
        volumes=[read_only(f"./{TEXTFILES}", f"/{TEXTFILES}")],
    )


DASHBOARD_FILE = "dashboard.json"
DATA_SOURCES_FILE = "datasources.yaml"
DASHBOARDS_FILE = "dashboards.yaml"
GRAFANA_PORT = 3000
PROVISIONING = "/etc/grafana/provisioning"


def grafana_export(user: str, hosts: Hosts) -> Export:
    """Return the dashboard, and what Grafana reads and Compose starts; `user` is a UID:GID."""
    service = neighbour_service(
        image_of("grafana", hosts),
        user=user,
        environment={
            "GF_SERVER_HTTP_ADDR": "127.0.0.1",
            "GF_SERVER_HTTP_PORT": str(GRAFANA_PORT),
            "GF_ANALYTICS_REPORTING_ENABLED": "false",
            "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
        },
        volumes=[
            read_only(f"./{DATA_SOURCES_FILE}", f"{PROVISIONING}/datasources/sparkdeploy.yaml"),
            read_only(f"./{DASHBOARDS_FILE}", f"{PROVISIONING}/dashboards/sparkdeploy.yaml"),
            read_only(f"./{DASHBOARD_FILE}", "/etc/grafana/sparkdeploy/dashboard.json"),
            writable(f"./{DATA}", "/var/lib/grafana"),
        ],
    )
    return Export(
        files=(
            shipped_file(DASHBOARD_FILE),
            shipped_file(DATA_SOURCES_FILE),
            shipped_file(DASHBOARDS_FILE),
            compose_of("grafana", {"grafana": service}),
        ),
        folders=(DATA,),
        user=user,
        next_step="docker compose up -d",
    )
