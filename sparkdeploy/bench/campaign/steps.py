"""What each step of a campaign does; what it brings lies in the campaign's folder afterwards."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sparkdeploy.bench.campaign.folder import (
    MAX_TEXT,
    SUITES,
    Campaign,
    PlannedRecipe,
    StepKind,
)
from sparkdeploy.bench.endpoint import Access, measure_hint, reach_deployment
from sparkdeploy.bench.files import read_record, shipped, write_record
from sparkdeploy.bench.load import LoadPlan, parse_limits
from sparkdeploy.bench.quality.capture import capture_of, write_capture
from sparkdeploy.bench.quality.probes import CaseResult, NeedleResult, search_needles, try_tools
from sparkdeploy.bench.record import Run
from sparkdeploy.bench.run import WantedRun, measure_endpoint, require_figures, run_store
from sparkdeploy.bench.suites import SuiteName
from sparkdeploy.bench.tables import limits_text, sustained_text
from sparkdeploy.checks.report import Verdict
from sparkdeploy.deploy.deployments import require_deployment
from sparkdeploy.deploy.doctor import examine
from sparkdeploy.deploy.nodes import connect
from sparkdeploy.deploy.request import Request, plan_for, resolve
from sparkdeploy.deploy.up import up
from sparkdeploy.errors import BenchError, UsageError
from sparkdeploy.plan.container import PYTHON, Deployment
from sparkdeploy.recipe.answers import planned_answers
from sparkdeploy.recipe.flags import switch_of
from sparkdeploy.recipe.load import Resolved
from sparkdeploy.settings import Settings
from sparkdeploy.terminal.console import console
from sparkdeploy.units import format_seconds

AUTO_TOOLS = "--enable-auto-tool-choice"
TUNING = (*PYTHON, "-m", "sparkdeploy_vllm.tune_head")


EXTENT = "campaign/extent.yaml"


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of one campaign; each returns in words what it found, or raises."""

    campaign: Campaign
    settings: Settings

    @property
    def extent(self) -> Any:  # noqa: ANN401 - YAML content
        return shipped(EXTENT)["quick" if self.campaign.plan.is_quick else "whole"]

    def serve(self, recipe: int) -> str:
        """Have the recipe serve; what runs already as it says stays."""
        request = self._request(recipe)
        outcome = up(
            resolve(request, self.settings),
            request,
            self.settings,
            confirm=lambda _question: True,
        )
        ready = outcome.readiness
        return f"answered {format_seconds(ready.startup_s)} after its start" if ready else "answers"

    def take(self, recipe: int, kind: StepKind) -> str:
        if kind in SUITES:
            return self._suite(recipe, kind)
        steps = {
            StepKind.DOCTOR: self._doctor,
            StepKind.QUALITY: self._quality,
            StepKind.NEEDLE: self._needle,
            StepKind.TOOLS: self._tools,
            StepKind.TUNE: self._tune,
        }
        return steps[kind](recipe)

    def _write(self, recipe: int, kind: StepKind, value: object, form: object) -> None:
        self.campaign.write(self.campaign.result(recipe, kind).name, value, form)

    def _request(self, recipe: int) -> Request:
        plan = self.campaign.plan
        return Request(plan.recipes[recipe].wanted, plan.assignments, Deployment(plan.deployment))

    def _doctor(self, recipe: int) -> str:
        request = self._request(recipe)
        plan = plan_for(request, self.settings)
        findings = examine(plan.resolved, self.settings, plan=plan)
        well = sum(item.verdict is Verdict.OK for item in findings)
        failed = [f"{item.check}: {item.seen}" for item in findings if item.verdict is Verdict.FAIL]
        return "; ".join([f"{well} of {len(findings)} checks are well", *failed])

    def _suite(self, recipe: int, kind: StepKind) -> str:
        endpoint = reach_deployment(self.campaign.plan.deployment, self.settings)
        path = self.campaign.result(recipe, kind)
        path.unlink(missing_ok=True)  # of a try that was broken off
        wanted = WantedRun(
            suites=(SuiteName(kind.value),),
            rounds=self.extent["rounds"],
            concurrency=(1,),
            context=(),
            save=str(path),
            prompts=self.extent["prompts"],
            load=self._load() if kind is StepKind.LOAD else None,
        )
        finished = measure_endpoint(endpoint, wanted, self.settings)
        require_figures(finished)
        run = merged(self.campaign, recipe)
        if run is not None:
            write_record(run, run_store(self.settings).folder / f"{run.run_id}.json")
        return found_in_words(finished.run)

    def _load(self) -> LoadPlan:
        limits_s = parse_limits(shipped(EXTENT)["limits"])
        return LoadPlan(limits_s=limits_s, **self.extent["load"])

    def _quality(self, recipe: int) -> str:
        capture = capture_of(
            self.campaign.plan.deployment,
            count=self.extent["texts"],
            tokens=self.extent["tokens"],
            settings=self.settings,
            access=Access(),
        )
        named = replace(capture, label=self.campaign.plan.recipes[recipe].name)
        write_capture(named, self.campaign.result(recipe, StepKind.QUALITY))
        return f"captured {len(capture.texts)} texts"

    def _needle(self, recipe: int) -> str:
        name, lengths = self.campaign.plan.deployment, self.extent["needle_tokens"]
        found = search_needles(name, lengths, self.settings, Access())
        self._write(recipe, StepKind.NEEDLE, found, tuple[NeedleResult, ...])
        return f"found {sum(item.is_found for item in found)} of {len(found)}"

    def _tools(self, recipe: int) -> str:
        results = try_tools(self.campaign.plan.deployment, self.settings, Access())
        self._write(recipe, StepKind.TOOLS, results, tuple[CaseResult, ...])
        return f"right {sum(not item.problem for item in results)} of {len(results)}"

    def _tune(self, recipe: int) -> str:
        with connect(self.settings) as host:
            fact = require_deployment(host, self.campaign.plan.deployment).current
            with console.step("tuning the kernels") as step:
                step.say("some minutes")
                code, output = host.exec(fact.container_id, TUNING)
        self._write(recipe, StepKind.TUNE, output[-MAX_TEXT:], str)
        lines = [line for line in output.splitlines() if line.strip()]
        last = lines[-1] if lines else ""
        if code != 0:
            raise BenchError(f"it ended with exit code {code}: {last}")
        return last


def planned(
    wanted: Sequence[str], resolved: Sequence[Resolved], *, is_quick: bool
) -> tuple[PlannedRecipe, ...]:
    """Return the recipes with their steps; each kernel is tuned with the last that has it."""
    for item in resolved:
        if not (answers := planned_answers(item.recipe.serve, {})).writes_text:
            raise UsageError(
                f"{item.recipe.name} writes no text, and a campaign measures how it is written",
                hint=measure_hint(answers.main),
            )
    shapes = [None if is_quick else tuned_shape(item) for item in resolved]
    found: list[PlannedRecipe] = []
    for index, (word, item) in enumerate(zip(wanted, resolved, strict=True)):
        has_tuning = shapes[index] is not None and shapes[index] not in shapes[index + 1 :]
        name = _free_name(item.recipe.name, {it.name for it in found})
        kinds = tuple(_kinds(item, has_tuning=has_tuning))
        found.append(PlannedRecipe(word, name, item.recipe.title, kinds))
    return tuple(found)


def _kinds(resolved: Resolved, *, has_tuning: bool) -> Iterator[StepKind]:
    serve = resolved.recipe.serve
    has_tools = bool(serve.enable_auto_tool_choice or switch_of(serve.extra_args, AUTO_TOOLS))
    left_out = {StepKind.TOOLS: not has_tools, StepKind.TUNE: not has_tuning}
    yield from (kind for kind in StepKind if not left_out.get(kind, False))


def tuned_shape(resolved: Resolved) -> tuple[object, ...] | None:
    """Return what decides which kernels' tiles can be timed on this card, None for none."""
    recipe = resolved.recipe
    checkpoint, serve = recipe.checkpoint, recipe.serve
    head = ("" if checkpoint.lm_head == "bf16" else checkpoint.lm_head, checkpoint.draft_lm_head)
    has_attention = serve.kv_cache_dtype.startswith("turboquant")
    if resolved.engine.runs_on != "cuda" or not (any(head) or has_attention):
        return None
    drafted = serve.speculative.tokens if serve.speculative is not None and has_attention else 0
    attention = (serve.kv_cache_dtype, drafted) if has_attention else ()
    return (recipe.model.source, *head, *attention)


def _free_name(name: str, taken: Collection[str]) -> str:
    names = (name, *(f"{name}-{number}" for number in range(2, len(taken) + 2)))
    return next(it for it in names if it not in taken)


def merged(campaign: Campaign, recipe: int) -> Run | None:
    """Return the suites that were taken of a recipe as one run; None before the first."""
    paths = [campaign.result(recipe, kind) for kind in SUITES]
    runs = [read_record(path) for path in paths if path.exists()]
    if not runs:
        return None
    name = campaign.plan.recipes[recipe].name
    return replace(
        runs[0],
        label=f"{name}-quick" if campaign.plan.is_quick else name,
        finished_at=runs[-1].finished_at,
        suites=tuple(suite for run in runs for suite in run.suites),
    )


def found_in_words(run: Run) -> str:
    last = run.suites[-1]
    if last.sustained is not None:
        return sustained_text(last.sustained)
    if last.loads:
        held = (f"{it.held} of {it.requests} at {it.rate_per_s:g}/s" for it in last.loads)
        return f"{', '.join(held)} held {limits_text(last.loads[0].limits_s)}"
    means = [(cell.prompt, cell.statistics.get("end_to_end_tok_s")) for cell in last.cells]
    words = ", ".join(f"{prompt} {mean.mean:.1f}" for prompt, mean in means if mean is not None)
    return f"{words} tok/s end to end" if words else "nothing was counted"
