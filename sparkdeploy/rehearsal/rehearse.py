"""A recipe in miniature, served for real on any machine, and held against itself."""

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from sparkdeploy.checkpoint.architecture import UnknownArchitectureError
from sparkdeploy.checkpoint.published import PublishedConfig, published_config
from sparkdeploy.checkpoint.tiny_model.build import build_tiny_model
from sparkdeploy.checkpoint.tiny_model.shape import TinyShape
from sparkdeploy.checkpoint.verify import is_qwen35_moe
from sparkdeploy.deploy.deployments import require_deployment
from sparkdeploy.deploy.lock import announced_lock, defer_signals
from sparkdeploy.deploy.nodes import connect
from sparkdeploy.deploy.removal import down
from sparkdeploy.deploy.request import Request, resolve
from sparkdeploy.deploy.serving import require_listener
from sparkdeploy.deploy.up import Outcome, UpOptions, up
from sparkdeploy.deploy.wait import start_title
from sparkdeploy.errors import CheckpointError, NodeError, RecipeError, UnhealthyError
from sparkdeploy.node.cluster import this_node
from sparkdeploy.plan.make import draft_plan
from sparkdeploy.plan.steps import for_cluster
from sparkdeploy.recipe.engine import Engine
from sparkdeploy.recipe.load import Resolved
from sparkdeploy.recipe.schema import Recipe
from sparkdeploy.rehearsal import miniature, requests
from sparkdeploy.rehearsal.engine import rehearsal_engine
from sparkdeploy.rehearsal.requests import ANSWERED, Answer, Asked
from sparkdeploy.rehearsal.stand_in import make_stand_in
from sparkdeploy.server.client import ServedModel
from sparkdeploy.server.facts import EngineFacts
from sparkdeploy.server.metrics import Speculation, read_metrics
from sparkdeploy.settings import Settings
from sparkdeploy.terminal.console import console
from sparkdeploy.terminal.step import PlannedStep

DEPLOYMENT = "rehearsal"
TURBOQUANT = "TURBOQUANT"
"""What a layer's attention is called in the log of an engine that has such a cache."""
MOE_OF_QWEN = re.compile(r"Qwen3\.[5-9]-\d+B-A\d+B", re.IGNORECASE)
"""Repositories of Qwen3.5-MoE, where nobody can be asked for the config.json."""
QUESTIONS = "sampling, a conversation"
TWIN_SEED = 20261121
TWIN_SHAPE = TinyShape()
MAX_TOKENS = 32
RECORDED_EARLIER = "identical to what an earlier rehearsal of these images and this twin recorded"
SERVED_BEFORE = "identical to what was served just before, without a drafter"
NOT_COMPARED = "dummy weights: it was compared with nothing"
MADE_DRAFTER = "how many drafts of the real drafter are accepted (this one was made for the twin)"
FIRST_OF_ITS_KIND = "this is the first of its kind: recorded, to compare the next ones with"
PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):",
    '{"employees": [{"name":',
    "Once upon a time, in a data centre far away,",
)


CONVERTED = (
    *("fp8_layers", "lm_head", "shared_int4_layers"),
    *("draft_head_rows", "draft_int4_layers", "draft_fp8_layers"),
)


@dataclass(frozen=True, slots=True)
class Report:
    recipe: str
    changes: tuple[str, ...]
    startup_s: float | None
    answers: tuple[Answer, ...]
    speculation: Speculation | None
    facts: EngineFacts
    reference: str
    base_url: str
    endpoint: str
    model: str
    is_kept: bool
    deployment: str
    asked: tuple[Asked, ...]
    proved: tuple[str, ...]
    not_proved: str

    @property
    def is_compared(self) -> bool:
        return self.reference in {RECORDED_EARLIER, SERVED_BEFORE}

    @property
    def tokens_a_second(self) -> float:
        """Return all tokens over all seconds, prefill included; 0 where no text is written."""
        duration_s = sum(a.duration_s for a in self.answers)
        return sum(a.tokens for a in self.answers) / duration_s if duration_s else 0.0

    def as_dict(self) -> dict[str, Any]:
        content = asdict(self)
        facts = content.pop("facts")
        return {
            **content,
            **{name: facts[name] for name in CONVERTED},
            "is_compared": self.is_compared,
            "tokens_a_second": self.tokens_a_second,
        }


@dataclass(frozen=True, slots=True)
class _Run:
    outcome: Outcome
    answers: tuple[Answer, ...]
    speculation: Speculation | None
    asked: tuple[Asked, ...] = ()


def rehearse(
    request: Request, settings: Settings, *, fresh: bool, keep: bool, consent: Callable[[str], bool]
) -> Report:
    """Serve a recipe's miniature, and ask it what its users will ask.

    Of Qwen3.5-MoE the greedy text is compared with the text without speculation; of other models
    nothing is said of the text, for their weights are dummies.

    `fresh` makes the text without speculation anew, `keep` leaves the server running. Raises
    UnhealthyError when a server does not start or answer, when texts differ, when nothing
    was drafted although the recipe speculates, or when the plugin converted something else than
    the recipe asks for; NodeError when a rehearsal of this name runs and may not be replaced.
    """
    name = request.deployment.name
    command = f"sparkdeploy rehearse {request.recipe}"
    lock = announced_lock(settings.lock_dir, f"{settings.node_name}-{name}", command)
    with lock, console.steps():
        with connect(settings) as host:
            containers = host.own_containers()
        is_running = any(it.is_running for it in containers if it.deployment == name)
        if is_running and not consent(f"{name} is running; end it and rehearse anew?"):
            raise NodeError(
                f"{name} is running and stays",
                hint="--name NAME rehearses beside it, --yes replaces it, "
                f"`sparkdeploy down {name}` ends it",
            )
        # A deployment has its port from its start on, long before it listens.
        taken = {it.port for it in containers if it.deployment != name}
        # What the recipe says of several nodes is for its miniature.
        small = _miniature(replace(request, cluster=False), settings, taken)
        if request.cluster:
            small = replace(small, resolved=for_cluster(small.resolved))
        for note in small.dropped:
            console.info(f"  changed for the rehearsal: {note}")
        served = replace(request, recipe=small.resolved.recipe.name, assignments=())
        with _tidied(name, keep=keep):
            run, source = _serve_and_compare(small, served, settings, fresh=fresh)
    return _report(small, run, source, is_kept=keep)


def _serve_and_compare(
    small: miniature.Miniature, request: Request, settings: Settings, *, fresh: bool
) -> tuple[_Run, str]:
    resolved = small.resolved
    if small.stand_in is not None:
        return _serve(resolved, request, settings), NOT_COMPARED
    file = _reference_file(resolved, request, settings)
    texts, source = _texts_without_speculation(resolved, request, settings, file, fresh=fresh)
    run = _serve(resolved, request, settings)
    if texts is None:
        requests.write_reference(file, run.answers)
    else:
        requests.compare_with_reference(run.answers, texts)
    return run, source


@contextlib.contextmanager
def _tidied(name: str, *, keep: bool) -> Iterator[None]:
    """Take the rehearsal down after the block; an interrupted one is never kept."""
    is_interrupted = False
    try:
        yield
    except KeyboardInterrupt:
        is_interrupted = True
        raise
    finally:
        if is_interrupted or not keep:
            # A second Ctrl-C is heard when nothing of it is left.
            with defer_signals():
                down(name, missing_ok=True)
                if is_interrupted:
                    console.info(f"{name} is taken down: it was interrupted")


def _miniature(request: Request, settings: Settings, taken: set[int | None]) -> miniature.Miniature:
    resolved = resolve(request, settings)
    port = miniature.port_of(resolved, taken)
    published = _published(resolved, settings)
    if published is None or is_qwen35_moe(published.config):
        engine = rehearsal_engine(resolved, settings, nearest=True)
        return _miniature_of_twin(resolved, engine, port, settings)
    engine = rehearsal_engine(resolved, settings, nearest=False)
    folder = settings.data_dir / "stand-ins" / request.deployment.name
    try:
        stand_in = make_stand_in(folder, published, resolved.recipe.model.source)
    except UnknownArchitectureError as error:
        raise RecipeError(
            f"{resolved.recipe.name} cannot be rehearsed: not known is {error}",
            hint="`sparkdeploy plan` holds its flags and parsers against the release all the same",
        ) from error
    return miniature.miniature_of_stand_in(resolved, engine=engine, stand_in=stand_in, port=port)


def _published(resolved: Resolved, settings: Settings) -> PublishedConfig | None:
    try:
        return published_config(resolved.recipe.model, settings)
    except CheckpointError:
        if not MOE_OF_QWEN.search(resolved.recipe.model.known_as):
            raise
        return None


def _miniature_of_twin(
    resolved: Resolved, engine: Engine, port: int, settings: Settings
) -> miniature.Miniature:
    twin = settings.data_dir / "twins" / f"twin-{TWIN_SEED}"
    with console.step("twin checkpoint"):
        build_tiny_model(twin, TWIN_SHAPE, seed=TWIN_SEED)
    resolved, twin = miniature.with_fp8_twin(resolved, twin)
    miniature.count_twin(resolved, twin, settings)
    miniature.make_drafter(resolved, twin, TWIN_SHAPE, seed=TWIN_SEED)
    return miniature.miniature_of(resolved, engine=engine, twin=twin, port=port)


def _texts_without_speculation(
    resolved: Resolved, request: Request, settings: Settings, file: Path, *, fresh: bool
) -> tuple[dict[str, str] | None, str]:
    """Return the texts and where they came from; None means: this run's own are the reference."""
    known = None if fresh else requests.read_reference(file)
    if known is not None:
        return known, RECORDED_EARLIER
    if resolved.recipe.serve.speculative is None:
        return None, FIRST_OF_ITS_KIND
    console.info("the text without speculation is not recorded yet: serving that first")
    plain = miniature.without_speculation(resolved)
    run = _serve(plain, replace(request, cluster=False), settings, UpOptions(shows_plan=False))
    requests.write_reference(file, run.answers)
    return {item.prompt: item.text for item in run.answers}, SERVED_BEFORE


def _reference_file(resolved: Resolved, request: Request, settings: Settings) -> Path:
    asked = {"seed": TWIN_SEED, **asdict(TWIN_SHAPE), "prompts": PROMPTS, "tokens": MAX_TOKENS}
    with this_node(settings) as nodes:
        plan = draft_plan(resolved, settings, nodes, request.deployment)
    return requests.reference_path(plan, asked, settings.state_dir)


def _serve(
    resolved: Resolved, request: Request, settings: Settings, options: UpOptions | None = None
) -> _Run:
    console.expect(PlannedStep(start_title(request.deployment.name)), PlannedStep(QUESTIONS))
    outcome = up(resolved, request, settings, confirm=lambda _question: True, options=options)
    recipe = resolved.recipe
    with ServedModel(
        outcome.plan.base_url,
        model=recipe.model.served_names[0],
        require_listener=partial(_require_own_listener, request.deployment.name, settings),
    ) as model:
        if not outcome.answers.writes_text:
            path = model.pool(PROMPTS[0]).path
            return _Run(outcome, (), None, (Asked(f"a text to {path}", ANSWERED),))
        before = read_metrics(model.exposition())
        with console.drawn_step(f"{len(PROMPTS)} texts"):
            done = [model.complete(it, MAX_TOKENS, extra={"ignore_eos": True}) for it in PROMPTS]
        after = read_metrics(model.exposition())
        with console.step(QUESTIONS):
            asked = (*requests.ask_sampled(model), *requests.ask_conversation(model, recipe))
    drafted = after.drafted if after is not None else None
    if drafted is not None and before is not None and before.drafted is not None:
        drafted = drafted.since(before.drafted)
    _check_drafting(recipe, drafted)
    answers = (
        Answer(prompt, it.text, it.completion_tokens, it.duration_s)
        for prompt, it in zip(PROMPTS, done, strict=True)
    )
    return _Run(outcome, tuple(answers), drafted, asked)


def _require_own_listener(name: str, settings: Settings) -> None:
    """UnhealthyError where another program than the rehearsal's container listens."""
    with connect(settings) as host:
        require_listener(require_deployment(host, name).current)


def _check_drafting(recipe: Recipe, drafted: Speculation | None) -> None:
    wanted = recipe.serve.speculative
    seen = drafted.tokens_a_draft if drafted is not None else None
    if wanted is not None and (seen is None or round(seen) != wanted.tokens):
        raise UnhealthyError(
            f"the recipe drafts {wanted.tokens} tokens a step, and the server drafted "
            f"{'none' if seen is None else f'{seen:.2f}'}"
        )


def _report(small: miniature.Miniature, run: _Run, source: str, *, is_kept: bool) -> Report:
    readiness, plan = run.outcome.readiness, run.outcome.plan
    recipe = small.resolved.recipe
    return Report(
        recipe=recipe.name,
        changes=small.dropped,
        startup_s=readiness.startup_s if readiness else None,
        answers=run.answers,
        speculation=run.speculation,
        facts=readiness.facts if readiness else EngineFacts(),
        reference=source,
        base_url=plan.base_url,
        endpoint=run.outcome.answers.main.path,
        model=recipe.model.served_names[0],
        is_kept=is_kept,
        deployment=plan.deployment.name,
        asked=run.asked,
        proved=tuple(_proved(recipe, run)),
        not_proved=_not_proved(small),
    )


def _proved(recipe: Recipe, run: _Run) -> Iterator[str]:
    yield from ("container", "flags", "start")
    serve = recipe.serve
    parsers = [it for it in (serve.reasoning_parser, serve.tool_call_parser) if it is not None]
    if parsers:
        yield f"parsers ({', '.join(parsers)})"
    readiness = run.outcome.readiness
    if readiness is not None and readiness.facts.attention_backend == TURBOQUANT:
        yield f"a {serve.kv_cache_dtype} cache"
    yield from (item.what for item in run.asked if item.is_answered)
    if run.speculation is not None and run.speculation.drafts:
        yield "drafts"


def _not_proved(small: miniature.Miniature) -> str:
    drafting = small.resolved.recipe.serve.speculative
    if small.stand_in is None:
        has_drafter = drafting is not None and drafting.drafter is not None
        made = f"{MADE_DRAFTER}, " if has_drafter else ""
        return f"{made}the real weights, and everything that only a GPU computes"
    if small.stand_in.has_own_tokenizer:
        return "weights, text, and everything that only a GPU computes"
    return "weights, text, the model's own tokenizer and template, and what only a GPU computes"
