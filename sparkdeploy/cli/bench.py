"""`bench`: whether a served model is as fast, and as good, as its recipe says."""

from __future__ import annotations

import typer
from typer.core import TyperGroup

from sparkdeploy.cli import bench_quality, bench_report, bench_runs


class _MeasuresByDefault(TyperGroup):
    """`bench [NAME]` measures; `bench ls` and its like are told apart by their names."""

    def parse_args(self, ctx, args: list[str]) -> list[str]:  # type: ignore[no-untyped-def]  # noqa: ANN001 - typer's own
        if not args or (args[0] not in self.commands and args[0] not in {"--help", "-h"}):
            args = [bench_runs.MEASURE, *args]
        return super().parse_args(ctx, args)


group = typer.Typer(
    cls=_MeasuresByDefault,
    help="Measure and compare what is served; `bench [NAME]` is short for `bench run [NAME]`.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def register(app: typer.Typer) -> None:
    """Add the group."""
    bench_runs.register(group)
    bench_quality.register(group)
    bench_report.register(group)
    app.add_typer(group, name="bench")
