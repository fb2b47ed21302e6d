"""Open WebUI in front of deployments: its Compose file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.export.neighbour import (
    UNCHECKED_LISTENER,
    Export,
    compose_of,
    image_of,
    neighbour_service,
    read_only,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkdeploy.deploy.serving import ServedDeployment
    from sparkdeploy.plan.launch import Exposure
    from sparkdeploy.settings import Hosts

KEYS_TARGET = "/run/keys"
NO_KEY = "none"


def open_webui_export(
    served: Sequence[ServedDeployment], port: int, exposure: Exposure, hosts: Hosts
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
            "HOST": exposure.host,
            "PORT": str(port),
            "ENABLE_OLLAMA_API": "False",
            "OPENAI_API_BASE_URLS": ";".join(f"http://127.0.0.1:{it.port}/v1" for it in talking),
        },
        volumes=[
            *(
                read_only(str(item.key_file), f"{KEYS_TARGET}/{item.name}")
                for item in talking
                if item.key_file is not None
            ),
            "open-webui:/app/backend/data",
        ],
    )
    compose = compose_of(
        "open-webui",
        {"open-webui": service},
        note=UNCHECKED_LISTENER,
        volumes={"open-webui": {}},
    )
    return Export((compose,), next_step="docker compose up -d")
