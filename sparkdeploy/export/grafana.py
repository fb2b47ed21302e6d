"""Grafana with a dashboard over what `export prometheus` records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.export.neighbour import (
    Export,
    compose_of,
    image_of,
    neighbour_service,
    read_only,
    shipped_file,
    writable,
)

if TYPE_CHECKING:
    from sparkdeploy.settings import Hosts

DASHBOARD_FILE = "dashboard.json"
DATA_SOURCES_FILE = "datasources.yaml"
DASHBOARDS_FILE = "dashboards.yaml"
DATA = "data"
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
