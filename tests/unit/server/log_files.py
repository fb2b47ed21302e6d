"""The recorded logs beside the tests."""

from pathlib import Path

import yaml

LOGS = Path(__file__).parent / "logs"
HEALTHY = ("cpu-0.32-mtp", "spark-0.19-mtp", "spark-0.33-mtp")


def recorded(name: str) -> bytes:
    """Return a recorded log as the container wrote it."""
    return (LOGS / f"{name}.log").read_bytes()


def recorded_crashes() -> list[str]:
    """Return the names of the recorded crashes; each begins with its cause."""
    return sorted(path.stem for path in (LOGS / "crashes").glob("*.log"))


def reported_crashes() -> list[dict[str, str]]:
    """Return what owners quoted in public threads, with the cause that it means."""
    return list(yaml.safe_load((LOGS / "reported.yaml").read_text()))


def healthy_logs() -> list[str]:
    """Return the names of starts that went well: of real ones on CPUs, and made-up ones on GPUs."""
    return sorted(path.stem for path in (LOGS / "healthy").glob("*.log"))
