"""A dashboard of what deployments do, and Grafana that shows it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sparkdeploy.export.neighbour import (
    WRITTEN_BY,
    Export,
    ExportedFile,
    compose_of,
    image_of,
    neighbour_service,
    read_only,
    settings_of,
    writable,
)
from sparkdeploy.export.panels import PANELS, Panel
from sparkdeploy.export.prometheus import PROMETHEUS_ADDRESS

if TYPE_CHECKING:
    from sparkdeploy.settings import Hosts

DASHBOARD_FILE = "dashboard.json"
DATA_SOURCES_FILE = "datasources.yaml"
DASHBOARDS_FILE = "dashboards.yaml"
DATA = "data"
GRAFANA_PORT = 3000
PROVISIONING = "/etc/grafana/provisioning"
COLUMNS, PANEL_WIDTH, PANEL_HEIGHT = 24, 8, 7
DATA_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
SCHEMA_VERSION = 39


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
            ExportedFile(DASHBOARD_FILE, json.dumps(dashboard(), indent=1) + "\n"),
            settings_of("grafana", DATA_SOURCES_FILE, _data_sources()),
            settings_of("grafana", DASHBOARDS_FILE, _dashboards()),
            compose_of("grafana", {"grafana": service}),
        ),
        folders=(DATA,),
        user=user,
        next_step="docker compose up -d",
    )


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it; who imports it chooses the data source."""
    return {
        "uid": "sparkdeploy",
        "title": "sparkdeploy",
        "description": f"{WRITTEN_BY} grafana`.",
        "tags": ["sparkdeploy", "vllm"],
        "schemaVersion": SCHEMA_VERSION,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_data_source_choice(), _deployment_choice()]},
        "panels": [_panel(number, panel) for number, panel in enumerate(PANELS)],
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    a_row = COLUMNS // PANEL_WIDTH
    place = {"x": number % a_row * PANEL_WIDTH, "y": number // a_row * PANEL_HEIGHT}
    return {
        "id": number + 1,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATA_SOURCE,
        "gridPos": {**place, "w": PANEL_WIDTH, "h": PANEL_HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + place_in_panel),
                "datasource": DATA_SOURCE,
                "expr": curve.expression,
                "legendFormat": curve.legend,
            }
            for place_in_panel, curve in enumerate(panel.curves)
        ],
    }


def _data_source_choice() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
    }


def _deployment_choice() -> dict[str, Any]:
    return {
        "name": "deployment",
        "label": "Deployment",
        "type": "query",
        "datasource": DATA_SOURCE,
        "query": "label_values(vllm:num_requests_running, deployment)",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _data_sources() -> dict[str, Any]:
    source = {
        "name": "Prometheus",
        "type": "prometheus",
        "access": "proxy",
        "url": f"http://{PROMETHEUS_ADDRESS}",
        "isDefault": True,
    }
    return {"apiVersion": 1, "datasources": [source]}


def _dashboards() -> dict[str, Any]:
    provider = {
        "name": "sparkdeploy",
        "type": "file",
        "options": {"path": "/etc/grafana/sparkdeploy"},
    }
    return {"apiVersion": 1, "providers": [provider]}
