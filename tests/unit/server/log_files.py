"""The recorded logs beside the tests."""

from pathlib import Path

LOGS = Path(__file__).parent / "logs"
HEALTHY = ("cpu-0.32-mtp", "spark-0.19-mtp", "spark-0.33-mtp")


def recorded(name: str) -> bytes:
    """Return a recorded log as the container wrote it."""
    return (LOGS / f"{name}.log").read_bytes()


def recorded_crashes() -> list[str]:
    """Return the names of the recorded crashes; each begins with its cause."""
    return sorted(path.stem for path in (LOGS / "crashes").glob("*.log"))


def healthy_logs() -> list[str]:
    """Return the names of starts that went well: of real ones on CPUs, and made-up ones on GPUs."""
    return sorted(path.stem for path in (LOGS / "healthy").glob("*.log"))
