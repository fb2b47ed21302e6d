"""Gather what an estimate needs: facts of the model, a machine, and every recipe to compare."""

import re
import statistics
import time
import timeit
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace

from sparkdeploy.authoring.model_facts import WhenMissing, drafter_of, facts_of
from sparkdeploy.checks.report import Finding, said
from sparkdeploy.estimate import memory, model, report
from sparkdeploy.estimate.hardware import (
    HERE,
    Hardware,
    MeasuredSpeed,
    facts_folder,
    hardware_named,
    hardware_seen,
    read_hardware,
)
from sparkdeploy.estimate.model import facts_of_rank, facts_of_step
from sparkdeploy.estimate.speed import Acceptance, Speed, decode_step, fit_speed, read_acceptance
from sparkdeploy.estimate.verdict import (
    REPORTED_ON,
    Fits,
    FitVerdict,
    verdict_of,
    verdict_words,
    without_others_report,
)
from sparkdeploy.node import facts as node_facts
from sparkdeploy.plan.steps import Plan
from sparkdeploy.recipe.cluster_sizes import nodes_needed
from sparkdeploy.recipe.library import default_recipe
from sparkdeploy.recipe.load import Library, Resolved, library, load_all, load_recipe, look_into
from sparkdeploy.settings import Settings, load_settings
from sparkdeploy.terminal.style import Piece, Style
from sparkdeploy.terminal.tables import Block

COPIED_BYTES = 128 * 2**20
COPIES = 3
_DIVIDED = re.compile(r"'(?:tensor|pipeline|data)_parallel_size'")
VERDICT_INKS = {Fits.YES: Style.GOOD, Fits.NO: Style.BAD, Fits.UNKNOWN: Style.CAUTION}


@dataclass(frozen=True, slots=True)
class Outlook:
    resolved: Resolved
    facts: model.ModelFacts
    """Of several nodes: what one of them has, the one that has most."""
    step_facts: model.ModelFacts
    """Of several nodes: what is read one byte after the other in a decode step."""
    budget: memory.Budget
    acceptance: Mapping[str, Acceptance]
    speed: Speed
    nodes: int = 1
    plan: Plan | None = None
    """What `up` would do there; None among many recipes."""

    @property
    def verdict(self) -> FitVerdict:
        step = decode_step(self.resolved, self.step_facts, self.acceptance)
        expect = self.resolved.recipe.expect
        # What others reported is of Sparks, and of as many.
        machines = REPORTED_ON.get(expect.hardware) if expect is not None else None
        is_reported = self.speed.hardware.fit is not None and self.nodes == machines
        return verdict_of(
            self.resolved.recipe,
            self.budget,
            self.facts,
            tok_s=self.speed.tokens_per_second(step) if step is not None else None,
            reported_tok_s=expect.tok_s if expect is not None and is_reported else None,
        )

    def verdict_line(self) -> str:
        """Return the verdict as one sentence: fits or not on these machines, and what of it."""
        verdict, title = self.verdict, self.budget.hardware.title
        machines = title if self.nodes == 1 else f"{self.nodes} x {title}"
        words = verdict_words(verdict, is_bound=self._is_bound)
        if self.problems and verdict.fits is not Fits.NO:
            why = "the lines with x say why"
            return (
                f"would not start on {machines}: {why}; by memory it {verdict.fits.value}, {words}"
            )
        return f"{verdict.fits.value} on {machines}: {words}"

    @property
    def _is_bound(self) -> bool:
        return self.speed.origin is None or self.nodes > 1

    def verdict_words(self) -> str:
        """Return the verdict without the machine, for a table of one machine."""
        over = f"over {self.nodes} machines, " if self.nodes > 1 else ""
        return over + verdict_words(self.verdict, is_bound=self._is_bound)

    def verdict_piece(self) -> Piece:
        ink = Style.BAD if self.problems else VERDICT_INKS[self.verdict.fits]
        return Piece(self.verdict_line(), ink)

    def division_lines(self) -> Iterator[str]:
        if self.nodes > 1:
            yield from report.node_lines(self.resolved.recipe.cluster, self.nodes)

    def capacity_lines(self) -> Iterator[Block]:
        yield f"{self.resolved.recipe.name}: {self.resolved.recipe.title}"
        yield from self.division_lines()
        yield from report.memory_lines(self.resolved, self.facts, self.budget)

    def reported_line(self) -> str | None:
        told, by = self.verdict.reported_tok_s, self.resolved.recipe.expect
        if told is None or by is None:
            return None
        return f"{told:g} tok/s {by.figure} reported: {by.source}, {by.engine}"

    def speed_lines(self) -> Iterator[Block]:
        yield from filter(None, (self.reported_line(),))
        longest = self.budget.max_model_len
        yield from report.speed_lines(*self._known, nodes=self.nodes, longest_tokens=longest)

    @property
    def _known(self) -> tuple[Resolved, model.ModelFacts, Mapping[str, Acceptance], Speed]:
        return self.resolved, self.step_facts, self.acceptance, self.speed

    def conversion_lines(self) -> Iterator[str]:
        """Yield how many bytes of a step the recipe's conversions save, where they do."""
        known = (self.resolved, self.step_facts, self.acceptance)
        after, without = decode_step(*known), report.steps_without(*known)
        if after is not None and report.TOGETHER in without:
            names = ", ".join(what for what in without if what != report.TOGETHER)
            before = without[report.TOGETHER].total_bytes / 1e9
            yield f"bytes a step: {before:.2f} -> {after.total_bytes / 1e9:.2f} GB by {names}"

    @property
    def problems(self) -> tuple[Finding, ...]:
        return self.plan.problems if self.plan is not None else ()

    @property
    def warnings(self) -> tuple[Finding, ...]:
        return self.plan.warnings if self.plan is not None else ()

    def as_dict(self) -> dict[str, object]:
        return {
            "schema": 1,
            "recipe": self.resolved.recipe.name,
            **({"nodes": self.nodes} if self.nodes > 1 else {}),
            "verdict": {**asdict(self.verdict), "fits": self.verdict.fits.value},
            "capacity": report.memory_as_dict(self.resolved, self.facts, self.budget),
            "speed": report.speed_as_dict(*self._known),
            "problems": [said(it) for it in self.problems],
            "warnings": [said(it) for it in self.warnings],
        }


def outlook_for(
    recipe: str | None,
    assignments: Iterable[str] | None,
    *,
    hardware: str,
    when_missing: WhenMissing = WhenMissing.SHIPPED,
    cluster: bool = False,
) -> Outlook:
    """Return the outlook of what was typed, with `cluster` for as many nodes as the recipe takes.

    So it is without it for a recipe that one node cannot serve. Raises UsageError for unknown
    hardware, CheckpointError when nothing is known of the model, and RecipeError for parallel
    sizes that no nodes of one GPU serve.
    """
    ground = ground_for(hardware, load_settings())
    wanted = recipe or default_recipe(ground.settings)
    changes = tuple(assignments or ())
    resolved = load_recipe(ground.recipe_library, wanted, changes, unasked=True)
    if changes:
        plain = look_into(ground.recipe_library, wanted).resolved
        as_is = without_others_report(resolved.recipe, plain.recipe if plain else None)
        resolved = replace(resolved, recipe=as_is)
    return planned_outlook(ground, resolved, when_missing, cluster=cluster)


def planned_outlook(
    ground: "Ground", resolved: Resolved, when_missing: WhenMissing, *, cluster: bool = False
) -> Outlook:
    """Return the outlook of a recipe with what `up` would do there."""
    cluster = cluster or resolved.recipe.cluster.least_nodes > 1
    outlook = ground.outlook(resolved, when_missing, cluster=cluster)
    # They import all that describes nodes, which a list of recipes does not need.
    from sparkdeploy.plan.container import Deployment  # noqa: PLC0415
    from sparkdeploy.plan.on_hardware import plan_on  # noqa: PLC0415

    machine, judged, several = outlook.budget.hardware, outlook.resolved, outlook.nodes > 1
    plan = plan_on(machine, judged, ground.settings, Deployment("main"), cluster=several)
    return replace(outlook, plan=plan)


@dataclass(frozen=True, slots=True)
class Ground:
    settings: Settings
    recipe_library: Library
    shipped: Mapping[str, model.ModelFacts]
    acceptance: Mapping[str, Acceptance]
    reached: Speed

    def outlook(
        self, resolved: Resolved, when_missing: WhenMissing, *, cluster: bool = False
    ) -> Outlook:
        """Raises as `outlook_for` does."""
        found = facts_of(resolved.recipe.model, self.settings, self.shipped, when_missing)
        fp8 = resolved.recipe.checkpoint.fp8_dense
        facts = replace(
            found,
            dense_share=model.dense_share_of(found) if fp8.takes_all else found.dense_share,
            drafter=drafter_of(resolved, self.settings, self.shipped, when_missing),
        )
        budget = memory.make_budget(resolved, facts, self.reached.hardware)
        whole = Outlook(resolved, facts, facts, budget, self.acceptance, self.reached)
        return _of_one_node(whole) if cluster else whole


def here_or_spark() -> str:
    """Return the machine that is judged where none is named: one without a GPU serves little."""
    return HERE if node_facts.read_gpus().gpus else "spark"


def copy_bandwidth(clock: Callable[[], float] = time.perf_counter) -> float:
    """Measure how many bytes a second one core moves when it copies memory, read and written."""
    block, target = bytearray(COPIED_BYTES), memoryview(bytearray(COPIED_BYTES))

    def copy() -> None:
        target[:] = block

    best_s = min(timeit.repeat(copy, number=1, repeat=COPIES, timer=clock))
    return 2 * COPIED_BYTES / best_s


def machine_wanted(wanted: str, table: Mapping[str, Hardware]) -> Hardware:
    """Return a machine of the table, or the one at hand; UsageError for a name that is neither."""
    if wanted != HERE:
        return hardware_named(wanted, table)
    return hardware_seen(
        next(iter(node_facts.read_gpus().gpus), None),
        table,
        memory_bytes=node_facts.read_meminfo().get("MemTotal", 0),
        copy_bytes_s=copy_bandwidth(),
    )


def measured_on(machine: Hardware, settings: Settings) -> list[MeasuredSpeed]:
    """Return what kept records say of such a machine: whole suites, one stream, end to end."""
    folder = settings.state_dir / "bench"
    if machine.gpu is None or not folder.is_dir():
        return []
    # It imports pydantic's models of a record, which no other estimate needs.
    from sparkdeploy.bench.files import RunStore  # noqa: PLC0415

    found: list[MeasuredSpeed] = []
    for item in RunStore(folder).runs()[0]:
        origin = item.run.origin
        seen = origin.machine.gpu if origin.machine is not None else None
        if origin.recipe is None or machine.gpu not in (seen or ""):
            continue
        # The estimate that it scales is of one machine; a drafter's own part says nothing of that.
        if origin.engine is not None and _DIVIDED.search(origin.engine.flags):
            continue
        speeds = [
            it.end_to_end_tok_s
            for suite in item.run.suites
            # An agent's prompts grow by turns: reading them is no share of a step.
            if suite.is_complete and suite.name != "agents"
            for cell in suite.cells
            if cell.concurrency == 1 and cell.context_tokens is None
            for it in cell.rounds
            if it.end_to_end_tok_s
        ]
        if speeds:
            mean = statistics.fmean(speeds)
            found.append(MeasuredSpeed(origin.recipe.name, mean))
    return found


def ground_for(hardware: str, settings: Settings) -> Ground:
    """Read facts and records once; raise UsageError for unknown hardware."""
    recipe_library, folder = library(settings), facts_folder()
    machines = read_hardware(folder / "hardware.yaml")
    machine = machine_wanted(hardware, machines)
    shipped = model.read_shipped_facts(folder / "models.yaml")
    acceptance = read_acceptance(folder / "speculation.yaml")
    measured = measured_on(machine, settings)
    # Of the recipes only those with records: to read them all takes longer than all the rest.
    loaded = load_all(recipe_library, {it.recipe for it in measured})
    recipes = {name: it for name, it in loaded.items() if isinstance(it, Resolved)}
    reached = fit_speed(machine, recipes, shipped, acceptance, measured)
    return Ground(settings, recipe_library, shipped, acceptance, reached)


def _of_one_node(whole: Outlook) -> Outlook:
    """Return what the node that holds most has of a model that several nodes serve."""
    # It imports all that describes nodes, which no other estimate needs.
    from sparkdeploy.plan.steps import for_cluster  # noqa: PLC0415

    resolved = for_cluster(whole.resolved)
    cluster = resolved.recipe.cluster
    held = facts_of_rank(
        whole.facts,
        tensor_parallel=cluster.tensor_parallel,
        pipeline_parallel=cluster.pipeline_parallel,
    )
    return replace(
        whole,
        resolved=resolved,
        facts=held,
        step_facts=facts_of_step(whole.facts, tensor_parallel=cluster.tensor_parallel),
        budget=memory.make_budget(resolved, held, whole.speed.hardware),
        nodes=nodes_needed(cluster, gpus_per_node=1),
    )
