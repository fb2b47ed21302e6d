"""A recipe in miniature, served for real on any machine, and held against itself."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from sparkdeploy.checkpoint.twin.build import build_twin
from sparkdeploy.checkpoint.twin.shape import TwinShape
from sparkdeploy.commands.operate import take_down
from sparkdeploy.commands.reach import Reach
from sparkdeploy.commands.request import Request, resolve
from sparkdeploy.commands.up import Extent, Outcome, up
from sparkdeploy.console import console
from sparkdeploy.deploy.changing import held_back, locked_here
from sparkdeploy.errors import NodeError, UnhealthyError
from sparkdeploy.node.cluster import this_node
from sparkdeploy.node.ports import is_port_free
from sparkdeploy.plan.container import Deployment
from sparkdeploy.plan.draft import draft_plan
from sparkdeploy.plan.formation import for_cluster
from sparkdeploy.recipe.load import library, load_engine
from sparkdeploy.rehearsal import reference
from sparkdeploy.rehearsal.miniature import (
    Miniature,
    count_twin,
    miniature_of,
    twin_to_serve,
    with_fp8_twin,
    without_speculation,
)
from sparkdeploy.rehearsal.reference import Answer
from sparkdeploy.server.client import ServedModel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sparkdeploy.recipe.load import Resolved
    from sparkdeploy.server.metrics import Speculation
    from sparkdeploy.settings import Settings

ENGINE = "cpu-0.32"
DEPLOYMENT = Deployment("rehearsal")
PORTS = range(8190, 8290)
TWIN_SEED = 20261121
TWIN_SHAPE = TwinShape()
MAX_TOKENS = 32
RECORDED_EARLIER = "identical to what an earlier rehearsal of these images and this twin recorded"
SERVED_BEFORE = "identical to what was served just before, without a drafter"
FIRST_OF_ITS_KIND = "this is the first of its kind: recorded, to compare the next ones with"
PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):",
    '{"employees": [{"name":',
    "Once upon a time, in a data centre far away,",
)


class ReferencePolicy(Enum):
    RECORDED = "use the recorded one"
    FRESH = "make it anew"


class Afterwards(Enum):
    TAKE_DOWN = "take it down"
    KEEP = "leave it running"


@dataclass(frozen=True, slots=True)
class Report:
    recipe: str
    changes: tuple[str, ...]
    startup_s: float | None
    answers: tuple[Answer, ...]
    speculation: Speculation | None
    fp8_layers: int | None
    lm_head: str | None
    draft_head_rows: int | None
    """Rows of the draft model's own head; None when it has none."""
    reference: str
    """Where the text without speculation came from."""
    base_url: str
    is_kept: bool

    @property
    def tokens_a_second(self) -> float:
        """Return all tokens over all seconds, prefill included."""
        return sum(a.tokens for a in self.answers) / sum(a.duration_s for a in self.answers)


@dataclass(frozen=True, slots=True)
class _Run:
    outcome: Outcome
    answers: tuple[Answer, ...]
    speculation: Speculation | None


def rehearse(
    request: Request, settings: Settings, *, policy: ReferencePolicy, afterwards: Afterwards
) -> Report:
    """Serve a recipe's miniature and compare its greedy text with the text without speculation.

    Raises UnhealthyError when the texts differ, when nothing was drafted although the recipe
    speculates, or when the plugin converted something else than the recipe asks for.
    """
    reach = request.reach
    # What the recipe says of several nodes is for its miniature.
    small = _miniature(replace(request, reach=Reach.HERE), settings)
    if reach is Reach.CLUSTER:
        small = replace(small, resolved=for_cluster(small.resolved))
    for note in small.dropped:
        console.info(f"  changed for the rehearsal: {note}")
    lock = f"{settings.node_name}-{DEPLOYMENT.name}"
    with locked_here(settings, lock, f"rehearse {request.recipe}"):
        return _rehearse(small, settings, policy=policy, afterwards=afterwards, reach=reach)


def _rehearse(
    small: Miniature,
    settings: Settings,
    *,
    policy: ReferencePolicy,
    afterwards: Afterwards,
    reach: Reach,
) -> Report:
    with _tidied(afterwards):
        file = _reference_file(small.resolved, settings)
        texts, source = _texts_without_speculation(small.resolved, settings, policy, file)
        run = _serve(small.resolved, settings, reach)
        if texts is None:
            reference.write_reference(file, run.answers)
        else:
            reference.compare_with_reference(run.answers, texts)
        _check_drafting(small.resolved, run.speculation)
    return _report(small, run, source, is_kept=afterwards is Afterwards.KEEP)


@contextlib.contextmanager
def _tidied(afterwards: Afterwards) -> Iterator[None]:
    """Take the rehearsal down after the block; an interrupted one is never kept."""
    is_interrupted = False
    try:
        yield
    except KeyboardInterrupt:
        is_interrupted = True
        raise
    finally:
        if is_interrupted or afterwards is Afterwards.TAKE_DOWN:
            # A second Ctrl-C is heard when nothing of it is left.
            with held_back():
                take_down(DEPLOYMENT.name)
                if is_interrupted:
                    console.info(f"{DEPLOYMENT.name} is taken down: it was interrupted")


def _miniature(request: Request, settings: Settings) -> Miniature:
    resolved = resolve(request, settings)
    twin = settings.data_dir / "twins" / f"twin-{TWIN_SEED}"
    with console.step("twin checkpoint"):
        build_twin(twin, TWIN_SHAPE, seed=TWIN_SEED)
    twin = twin_to_serve(resolved, twin)
    resolved = with_fp8_twin(resolved, twin)
    count_twin(resolved, twin, settings)
    engine = load_engine(library(settings), ENGINE)
    return miniature_of(resolved, engine=engine, twin=twin, port=_free_port())


def _free_port() -> int:
    port = next(filter(is_port_free, PORTS), None)
    if port is None:
        raise NodeError(f"no port from {PORTS.start} to {PORTS.stop - 1} is free")
    return port


def _texts_without_speculation(
    resolved: Resolved, settings: Settings, policy: ReferencePolicy, file: Path
) -> tuple[dict[str, str] | None, str]:
    """Return the texts and where they came from; None means: this run's own are the reference."""
    known = reference.read_reference(file) if policy is ReferencePolicy.RECORDED else None
    if known is not None:
        return known, RECORDED_EARLIER
    if resolved.recipe.serve.speculative is None:
        return None, FIRST_OF_ITS_KIND
    console.info("the text without speculation is not recorded yet: serving that first")
    run = _serve(without_speculation(resolved), settings)
    reference.write_reference(file, run.answers)
    return {item.prompt: item.text for item in run.answers}, SERVED_BEFORE


def _reference_file(resolved: Resolved, settings: Settings) -> Path:
    asked = {"seed": TWIN_SEED, **asdict(TWIN_SHAPE), "prompts": PROMPTS, "tokens": MAX_TOKENS}
    with this_node(settings) as nodes:
        plan = draft_plan(resolved, settings, nodes, DEPLOYMENT)
    return reference.reference_path(plan, asked, settings.state_dir)


def _serve(resolved: Resolved, settings: Settings, reach: Reach = Reach.HERE) -> _Run:
    request = Request(resolved.recipe.name, (), DEPLOYMENT, reach)
    outcome = up(resolved, request, settings, extent=Extent.ANSWER, consent=lambda _question: True)
    with ServedModel(outcome.plan.base_url, model=resolved.recipe.model.served_names[0]) as model:
        before = model.speculation()
        answers = tuple(_ask(model, prompt) for prompt in PROMPTS)
        after = model.speculation()
    drafted = after.since(before) if after is not None and before is not None else after
    return _Run(outcome, answers, drafted)


def _ask(model: ServedModel, prompt: str) -> Answer:
    done = model.complete(prompt, MAX_TOKENS, extra={"ignore_eos": True})
    return Answer(prompt, done.text, done.completion_tokens, done.duration_s)


def _check_drafting(resolved: Resolved, drafted: Speculation | None) -> None:
    wanted = resolved.recipe.serve.speculative
    if wanted is None:
        return
    seen = drafted.tokens_a_draft if drafted is not None else None
    if seen is None or round(seen) != wanted.tokens:
        raise UnhealthyError(
            f"the recipe drafts {wanted.tokens} tokens a step, and the server drafted "
            f"{'none' if seen is None else f'{seen:.2f}'}"
        )


def _report(small: Miniature, run: _Run, source: str, *, is_kept: bool) -> Report:
    readiness = run.outcome.readiness
    facts = readiness.facts if readiness else None
    return Report(
        recipe=small.resolved.recipe.name,
        changes=small.dropped,
        startup_s=readiness.startup_s if readiness else None,
        answers=run.answers,
        speculation=run.speculation,
        fp8_layers=facts.fp8_layers if facts else None,
        lm_head=facts.lm_head if facts else None,
        draft_head_rows=facts.draft_head_rows if facts else None,
        reference=source,
        base_url=run.outcome.plan.base_url,
        is_kept=is_kept,
    )
