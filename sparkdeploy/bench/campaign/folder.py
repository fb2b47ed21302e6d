"""A campaign's folder: its state, and what its steps brought."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkdeploy.bench.campaign.state import SCHEMA_VERSION, CampaignState, StepKind
from sparkdeploy.bench.files import adapter_of, checked, read_content
from sparkdeploy.errors import BenchError
from sparkdeploy.node.private_folder import write_private

if TYPE_CHECKING:
    from pathlib import Path

STATE = "campaign.json"
REPORT, BUNDLE = "report.html", "bundle.json"


@dataclass(frozen=True, slots=True)
class CampaignFolder:
    path: Path

    @property
    def report(self) -> Path:
        return self.path / REPORT

    @property
    def bundle(self) -> Path:
        return self.path / BUNDLE

    def result(self, recipe: int, kind: StepKind) -> Path:
        """Return where a step leaves what it brought."""
        return self.path / f"{recipe + 1:02}-{kind.value}.json"

    def write(self, state: CampaignState) -> None:
        """Keep the state, whole or not at all, also through a power cut."""
        text = adapter_of(CampaignState).dump_json(state, indent=1).decode() + "\n"
        _write(self.path / STATE, text, is_durable=True)

    def read(self) -> CampaignState:
        """BenchError for a file that is damaged, or of a newer sparkdeploy."""
        path = self.path / STATE
        content = read_content(path, "campaign")
        version = content.get("schema") if isinstance(content, dict) else None
        if version != SCHEMA_VERSION:
            raise BenchError(
                f"{path} has schema {version}, and this sparkdeploy reads {SCHEMA_VERSION}",
                hint="update sparkdeploy, or remove the folder: what served before is then not "
                "put back",
            )
        state: CampaignState = checked(content, CampaignState, path)
        return state

    def write_result(self, recipe: int, kind: StepKind, value: object, form: type) -> None:
        text = adapter_of(form).dump_json(value, indent=1).decode() + "\n"
        _write(self.result(recipe, kind), text, is_durable=False)

    def read_result(self, recipe: int, kind: StepKind, form: type) -> Any:  # noqa: ANN401 - `form`
        """Return what a step brought, None where it brought nothing."""
        path = self.result(recipe, kind)
        return checked(read_content(path, "result"), form, path) if path.exists() else None


def campaigns_below(state_dir: Path) -> Path:
    return state_dir / "campaigns"


def unfinished(state_dir: Path) -> tuple[CampaignFolder, CampaignState] | None:
    """Return the newest campaign that is not over; BenchError when its state cannot be read."""
    for path in sorted(campaigns_below(state_dir).glob(f"*/{STATE}"), reverse=True):
        folder = CampaignFolder(path.parent)
        state = folder.read()
        if not state.is_over:
            return folder, state
    return None


def _write(path: Path, text: str, *, is_durable: bool) -> None:
    try:
        write_private(path, text, is_durable=is_durable)
    except OSError as error:
        raise BenchError(f"{path} cannot be written: {error.strerror}", hint="make room") from error
