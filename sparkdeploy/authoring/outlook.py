"""Gather what an estimate needs: facts of the model, a machine, and every recipe to compare."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy.authoring.machine import machine_wanted, measured_on
from sparkdeploy.checkpoint import source as sources
from sparkdeploy.checkpoint.contents import read_config, read_tensors
from sparkdeploy.checkpoint.family import turboquant
from sparkdeploy.checkpoint.family.demands import attention_demands
from sparkdeploy.checkpoint.family.turboquant import unserved
from sparkdeploy.errors import CheckpointError, RecipeError
from sparkdeploy.estimate import (
    capacity,
    capacity_report,
    contexts,
    drafting_report,
    model_facts,
    speed,
    speed_report,
)
from sparkdeploy.estimate.acceptance import read_acceptance
from sparkdeploy.estimate.anchored import anchored
from sparkdeploy.estimate.attention import read_attention
from sparkdeploy.estimate.hardware import read_hardware
from sparkdeploy.estimate.share import facts_of_rank, facts_of_step
from sparkdeploy.estimate.verdict import (
    Fits,
    FitVerdict,
    machines_words,
    verdict_line,
    verdict_of,
    verdict_words,
)
from sparkdeploy.recipe.cluster_sizes import nodes_needed
from sparkdeploy.recipe.harmless import shown
from sparkdeploy.recipe.load import library, load_recipe
from sparkdeploy.recipe.report import model_name
from sparkdeploy.settings import load_settings, resources
from sparkdeploy.terminal.console import console
from sparkdeploy.terminal.style import Piece, Style

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from sparkdeploy.estimate.acceptance import Acceptance
    from sparkdeploy.estimate.speed import Speed, SpeedEstimate
    from sparkdeploy.recipe.load import Library, Resolved
    from sparkdeploy.recipe.schema import Weights
    from sparkdeploy.settings import Settings
    from sparkdeploy.terminal.tables import Block

VERDICT_INKS = {Fits.YES: Style.GOOD, Fits.NO: Style.BAD, Fits.UNKNOWN: Style.CAUTION}


class WhenMissing(Enum):
    """Where the facts of a model come from that is not on this machine."""

    SHIPPED = "shipped, else what the hub says within seconds"
    HUB = "the headers on the hub"
    NOBODY = "shipped, or none"


class Among(Enum):
    """Which machines an estimate is for."""

    ONE = "one machine that holds the whole model"
    CLUSTER = "as many nodes of one GPU as the recipe's cluster section takes"


@dataclass(frozen=True, slots=True)
class Outlook:
    """What can be said about a recipe on a machine before anything is downloaded or started."""

    resolved: Resolved
    facts: model_facts.ModelFacts
    """Of several nodes: what one of them holds, the one that holds most."""
    step_facts: model_facts.ModelFacts
    """Of several nodes: what is read one byte after the other in a decode step."""
    budget: capacity.Budget
    recipes: Mapping[str, Resolved]
    acceptance: Mapping[str, Acceptance]
    speed: Speed
    estimates: tuple[SpeedEstimate, ...]
    nodes: int = 1

    @property
    def verdict(self) -> FitVerdict:
        return verdict_of(self.resolved.recipe, self.budget, self.facts, self._own)

    @property
    def _own(self) -> SpeedEstimate | None:
        name = self.resolved.recipe.name
        return next((made for made in self.estimates if made.name == name), None)

    @property
    def _is_bound(self) -> bool:
        return self.speed.fitted_to is None or self.nodes > 1

    def verdict_line(self) -> str:
        verdict, least = self.verdict, self.resolved.recipe.cluster.least_nodes
        machines = machines_words(self.budget.hardware.title, self.nodes)
        line = verdict_line(verdict, machines, is_bound=self._is_bound)
        is_too_few = verdict.fits is Fits.NO and self.nodes < least
        return f"{line}; the recipe is for {least} machines: --cluster" if is_too_few else line

    def verdict_words(self) -> str:
        """Return the verdict without the machine, for a table of one machine."""
        over = f"over {self.nodes} machines, " if self.nodes > 1 else ""
        return over + verdict_words(self.verdict, is_bound=self._is_bound)

    def verdict_piece(self) -> Piece:
        """Return the verdict in the ink of what it means: the first line of an estimate."""
        return Piece(self.verdict_line(), VERDICT_INKS[self.verdict.fits])

    def capacity_lines(self) -> Iterator[Block]:
        yield f"{self.resolved.recipe.name}: {self.resolved.recipe.title}"
        if self.nodes > 1:
            yield from speed_report.node_lines(self.resolved.recipe.cluster, self.nodes)
        yield from capacity_report.capacity_lines(self.resolved, self.facts, self.budget)

    def speed_lines(self) -> Iterator[Block]:
        """Yield the roofline: this recipe's step, more requests, every recipe, what is next."""
        known = (self.step_facts, self.acceptance)
        yield from speed_report.speed_lines(self.speed)
        yield from drafting_report.drafting_lines(self.resolved.recipe, self.acceptance)
        if self.nodes > 1:
            yield from speed_report.unknown_lines(self.resolved.recipe.cluster)
        steps = speed_report.batch_steps(self.resolved, *known)
        if steps:
            yield from speed_report.step_lines(steps[0], self.speed)
            yield from speed_report.batch_lines(steps, self.speed)
            yield from self._draft_lines()
        longer = self._contexts()
        if longer is not None:
            yield from contexts.context_lines(longer)
        # Published figures, and what another recipe would save, are of one machine.
        if self.nodes > 1:
            return
        yield from speed_report.estimate_lines(self.estimates, self.speed)
        name = self.resolved.recipe.name
        if name in self.recipes:
            recipes = {**self.recipes, name: self.resolved}
            yield from speed_report.next_lines(name, recipes, *known)

    def _draft_lines(self) -> Iterator[str]:
        """Yield what the drafts bring in other texts, and how many of them pay."""
        known = (self.step_facts, self.acceptance, self.speed)
        yield from drafting_report.text_lines(self.resolved, *known)
        # A published speed of a parent is one machine's.
        made = self._own if self.nodes == 1 else None
        yield from drafting_report.third_draft_lines(self.resolved, *known, made)

    def _contexts(self) -> contexts.ContextOutlook | None:
        longest_tokens = self.budget.max_model_len
        known = (self.step_facts, self.acceptance)
        return contexts.context_outlook(self.resolved, *known, self.speed, longest_tokens)

    def as_dict(self) -> dict[str, object]:
        steps = speed_report.batch_steps(self.resolved, self.step_facts, self.acceptance)
        return {
            "schema": 1,
            "recipe": self.resolved.recipe.name,
            **({"nodes": self.nodes} if self.nodes > 1 else {}),
            "verdict": {**asdict(self.verdict), "fits": self.verdict.fits.value},
            "capacity": capacity_report.capacity_as_dict(self.resolved, self.facts, self.budget),
            "speed": {
                **speed_report.estimates_as_dict(self.estimates, self.speed, steps),
                "contexts": contexts.contexts_as_dict(self._contexts()),
            },
        }


def outlook_for(
    recipe: str | None,
    assignments: Iterable[str] | None,
    *,
    hardware: str,
    when_missing: WhenMissing = WhenMissing.SHIPPED,
    among: Among = Among.ONE,
) -> Outlook:
    """Return the outlook of what a user typed; no Docker or GPU is needed.

    Only `WhenMissing.HUB` uses the network, and only for a model that is not here.

    Raises UsageError for unknown hardware, CheckpointError when nothing is known of the model,
    RecipeError for parallel sizes that no nodes of one GPU serve, and for a cache format that does
    not go with the model's attention.
    """
    ground = ground_for(hardware, load_settings())
    # Not from request, which imports all that deploys and would double the time of the answer.
    wanted = recipe or ground.settings.default_recipe
    resolved = load_recipe(ground.shelf, wanted, tuple(assignments or ()))
    outlook = ground.outlook(resolved, when_missing, among)
    _refuse_unserved(outlook)
    return outlook


def _refuse_unserved(outlook: Outlook) -> None:
    """Raise RecipeError where the cache's format does not go with the model's attention."""
    recipe = outlook.resolved.recipe
    for found in unserved(recipe.serve, attention_demands(outlook.facts.config)):
        raise RecipeError(found.message(shown(recipe.model.source)), hint=turboquant.FIX)


@dataclass(frozen=True, slots=True)
class Ground:
    """What every recipe's outlook on one machine stands on."""

    settings: Settings
    shelf: Library
    shipped: Mapping[str, model_facts.ModelFacts]
    recipes: Mapping[str, Resolved]
    acceptance: Mapping[str, Acceptance]
    reached: Speed

    def _of_one_model(self, resolved: Resolved) -> Mapping[str, Resolved]:
        return {name: it for name, it in self.recipes.items() if _beside(it, resolved)}

    def outlook(
        self, resolved: Resolved, when_missing: WhenMissing, among: Among = Among.ONE
    ) -> Outlook:
        """Raises as `outlook_for` does."""
        recipe, machine = resolved.recipe, self.reached.hardware
        facts = replace(
            facts_of(recipe.model, self.settings, self.shipped, when_missing),
            drafter=_drafter_of(resolved, self.settings, self.shipped, when_missing),
        )
        # The same model in every row: the files at hand describe it better than the shipped facts.
        known = {**self.shipped, recipe.model.known_as: facts}
        compared = speed.in_order({**self._of_one_model(resolved), recipe.name: resolved})
        whole = Outlook(
            resolved=resolved,
            facts=facts,
            step_facts=facts,
            budget=capacity.make_budget(resolved, facts, machine),
            recipes=self._of_one_model(resolved),
            acceptance=self.acceptance,
            speed=self.reached,
            estimates=anchored(
                [speed.estimate(item, known, self.acceptance, self.reached) for item in compared],
                {item.recipe.name: item for item in compared},
                self.reached,
            ),
        )
        return whole if among is Among.ONE else _of_one_node(whole)


def _beside(one: Resolved, other: Resolved) -> bool:
    """Say whether two recipes serve the same model, in whatever format of its weights."""
    return model_name(one.recipe.model.known_as) == model_name(other.recipe.model.known_as)


def facts_folder() -> Path:
    return resources() / "recipes" / "facts"


def ground_for(hardware: str, settings: Settings) -> Ground:
    """Read facts and recipes once; raise UsageError for unknown hardware."""
    shelf, folder = library(settings), facts_folder()
    machines = read_hardware(folder / "hardware.yaml")
    machine = machine_wanted(hardware, machines)
    shipped = model_facts.read_shipped_facts(folder / "models.yaml")
    acceptance = read_acceptance(folder / "speculation.yaml")
    recipes = _recipes(shelf)
    measured = measured_on(machine, settings)
    attention = read_attention(folder / "attention.yaml", machines)
    reached = speed.fit_speed(machine, recipes, shipped, acceptance, attention, measured)
    return Ground(settings, shelf, shipped, recipes, acceptance, reached)


def _of_one_node(whole: Outlook) -> Outlook:
    """Return what the node that holds most has of a model that several nodes serve."""
    # It imports all that describes nodes, which no other estimate needs.
    from sparkdeploy.plan.formation import for_cluster  # noqa: PLC0415

    resolved = for_cluster(whole.resolved)
    cluster = resolved.recipe.cluster
    held = facts_of_rank(
        whole.facts,
        tensor_parallel=cluster.tensor_parallel,
        pipeline_parallel=cluster.pipeline_parallel,
    )
    read = facts_of_step(whole.facts, tensor_parallel=cluster.tensor_parallel)
    made = speed.estimate(resolved, {read.repo: read}, whole.acceptance, whole.speed)
    nodes = nodes_needed(cluster, gpus_per_node=1)
    return replace(
        whole,
        resolved=resolved,
        facts=held,
        step_facts=read,
        budget=capacity.make_budget(resolved, held, whole.speed.hardware),
        # Published figures are of one machine.
        estimates=(replace(made, published_tok_s=None),) if nodes > 1 else whole.estimates,
        nodes=nodes,
    )


def facts_of(
    weights: Weights,
    settings: Settings,
    shipped: Mapping[str, model_facts.ModelFacts],
    when_missing: WhenMissing,
) -> model_facts.ModelFacts:
    """Return what the model's own files say; when it is not here, what is asked for instead.

    Raises CheckpointError for files that are damaged, and when nobody knows the model.
    """
    name = weights.source
    source = (
        sources.open_folder(Path(weights.path))
        if weights.path is not None
        else sources.find_in_hub_cache(name, weights.revision, settings.hub_cache)
    )
    if source is not None:
        tensors = read_tensors(source.files_dir).values()
        return model_facts.facts_from(
            name,
            read_config(source.files_dir),
            (item.info for item in tensors),
            "safetensors headers on this machine",
        )
    if when_missing is WhenMissing.HUB:
        # It imports requests, which no other estimate needs.
        from sparkdeploy.authoring.remote_facts import hub_facts  # noqa: PLC0415

        return hub_facts(weights, settings)
    if name not in shipped and when_missing is WhenMissing.SHIPPED:
        from sparkdeploy.authoring.remote_facts import facts_in_time  # noqa: PLC0415

        return facts_in_time(weights, settings)
    if name not in shipped:
        fetch = sources.fetch_command(name, weights.revision)
        raise CheckpointError(
            f"nothing is known of {name}: it is not here and has no shipped facts",
            hint=f"read its headers with --headers, or {fetch}",
        )
    return shipped[name]


def _drafter_of(
    resolved: Resolved,
    settings: Settings,
    shipped: Mapping[str, model_facts.ModelFacts],
    when_missing: WhenMissing,
) -> model_facts.ModelFacts | None:
    """Return what is known of a drafter that is a model of its own; None when that is nothing."""
    speculative = resolved.recipe.serve.speculative
    drafter = speculative.drafter if speculative is not None else None
    if drafter is None:
        return None
    try:
        return facts_of(drafter, settings, shipped, when_missing)
    except CheckpointError as error:
        # Among many recipes it would be said of each.
        if when_missing is not WhenMissing.NOBODY:
            console.info(f"{drafter.source} is not counted: {error.message}")
        return None


def _recipes(shelf: Library) -> Mapping[str, Resolved]:
    """Every recipe that loads; a broken one is `list`'s to report."""
    found: dict[str, Resolved] = {}
    for name in shelf.recipe_files():
        try:
            found[name] = load_recipe(shelf, name)
        except RecipeError:
            continue
    return found
