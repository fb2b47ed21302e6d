"""`new`: a recipe for a model of which there is none, from what its owner publishes of it; or one
that changes another."""

import os
import re
import shlex
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from sparkdeploy import atomic_files
from sparkdeploy.authoring.model_facts import WhenMissing
from sparkdeploy.authoring.new_model import (
    ChosenEngine,
    DraftRecipe,
    Guess,
    NewModel,
    changing_text,
    engine_for,
    misfits,
)
from sparkdeploy.authoring.outlook import Ground, ground_for, here_or_spark
from sparkdeploy.checkpoint.published import PublishedConfig, published_config, refuse_gguf_alone
from sparkdeploy.errors import Mistakes, NodeError, RecipeError, SparkdeployError, UsageError
from sparkdeploy.estimate.verdict import Fits, FitVerdict
from sparkdeploy.recipe.answers import Task
from sparkdeploy.recipe.fields import NAME_PATTERN
from sparkdeploy.recipe.library import is_path
from sparkdeploy.recipe.load import Resolved, library, load_recipe, look_into
from sparkdeploy.recipe.releases import Family
from sparkdeploy.recipe.schema import Weights
from sparkdeploy.recipe.words import shown
from sparkdeploy.settings import Settings, resources
from sparkdeploy.yaml_text import in_line

NOWHERE = "-"
"""A destination: the recipe is printed, and no file written."""
SHORTEST_CONTEXT = 8_192
MOST_NODES = 8
UTILIZATION = 0.85
LARGEST_SAMPLING = 1_000_000
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class NewRecipe:
    path: Path | None
    """None where it was written nowhere."""
    text: str
    verdict: str
    """Whether it fits, and how much at once; or why nobody knows. Empty where nothing of it was
    chosen."""
    nodes: int
    cannot_have: tuple[str, ...] = ()
    """Which settings of its base this model cannot have, and why."""
    next_step: str = ""
    """The command that says what `up` would do about it; empty where no file was written."""


def new_recipe(
    name: str, model: str | None, base: str | None, destination: str | None, settings: Settings
) -> NewRecipe:
    """Write a recipe into the user's own folder, or to `destination`; `-` is nowhere.

    It is one for a model, or without a model one that changes its base. Raises UsageError for a
    name, a model or a destination that is none, RecipeError where a file of that name exists or a
    shipped recipe has it, or the base is none, NodeError where none can be written, and
    CheckpointError where nobody knows the model's config.json.
    """
    if re.fullmatch(NAME_PATTERN, name) is None:
        raise UsageError(
            f"{shown(name)} is no recipe name", hint="lower-case letters, digits, . _ -"
        )
    if destination is None and (resources() / "recipes" / f"{name}.yaml").exists():
        raise RecipeError(
            f"{name} is a recipe that is shipped, and yours would take its place",
            hint="choose another name, or write it elsewhere with -o FILE",
        )
    path = _place(name, destination, settings)
    made = _changing(name, base, settings) if model is None else _made(name, model, base, settings)
    if path is None:
        return made
    _write(path, made.text)
    # As it is taken for a path: neither a recipe's name nor SOURCE/RECIPE.
    typed = str(path) if path.is_absolute() else f"./{path}"
    called = name if destination is None else typed
    return replace(made, path=path, next_step=_next_step(called, made.nodes, settings))


def _changing(name: str, base: str | None, settings: Settings) -> NewRecipe:
    if base is None:
        raise UsageError(
            "a new recipe is for a model, or changes another recipe",
            hint="--model ORG/NAME, or --from RECIPE (`sparkdeploy list` shows them)",
        )
    # Nothing is run: what it asks for is judged when the new one is.
    recipe = load_recipe(library(settings), base, ("allow_unsafe=true",)).recipe
    text = changing_text(name, _findable(base), recipe)
    return NewRecipe(None, text, "", recipe.cluster.least_nodes)


def _made(name: str, model: str, base: str | None, settings: Settings) -> NewRecipe:
    weights = _weights(model)
    published = published_config(weights, settings, "--model FOLDER")
    refuse_gguf_alone(weights.source, published.files)
    draft = DraftRecipe(name, weights, _findable(base) if base is not None else None)
    draft = _described(draft, published, settings)
    if base is not None:
        recipe = _resolved(draft, settings).recipe
        draft = replace(draft, misfits=tuple(misfits(recipe, published.config, settings)))
    draft, verdict = _fitted(draft, published, settings)
    cannot_have = tuple(f"{base}'s {it.setting}: {it.reason}" for it in draft.misfits)
    return NewRecipe(None, draft.text(), verdict, draft.nodes, cannot_have)


def _next_step(called: str, nodes: int, settings: Settings) -> str:
    """Return the `plan` of a recipe; outside the user's own folder it may need consent."""
    loaded = look_into(library(settings), called)
    cluster = " --cluster" if nodes > 1 else ""
    consent = " --allow-unsafe" if loaded.consents else ""
    return f"sparkdeploy plan {shlex.quote(called)}{cluster}{consent}"


def _place(name: str, destination: str | None, settings: Settings) -> Path | None:
    """Return the file that is to be written; UsageError or RecipeError for what cannot be one."""
    if destination == NOWHERE:
        return None
    if destination is None:
        path = settings.config_dir / "recipes" / f"{name}.yaml"
    elif not destination:
        raise UsageError("-o names no file", hint="-o FILE; `-o -` prints the recipe alone")
    else:
        path = Path(destination)
    # Neither of these raises for a name that is too long for any file.
    if os.path.isdir(path) and destination is not None:  # noqa: PTH112
        inside = shlex.quote(shown(f"{path / name}.yaml"))
        raise UsageError(f"-o {shown(path)} is a folder", hint=f"name a file in it: -o {inside}")
    # A link that leads nowhere is somebody's too.
    if os.path.lexists(path):
        raise _existing(path)
    return path


def _existing(path: Path) -> RecipeError:
    return RecipeError(f"{path} exists, and stays", hint="choose another name, or another -o")


def _write(path: Path, text: str) -> None:
    """Raise NodeError where the file cannot be written, RecipeError where one came meanwhile."""
    try:
        with atomic_files.opened_folder(path.parent) as folder:
            folder.create(path.name, text.encode())
    except FileExistsError as error:
        raise _existing(path) from error
    except OSError as error:
        raise NodeError(
            f"{shown(path)} cannot be written: {error.strerror or error}",
            hint="name another file: -o FILE; `-o -` prints the recipe alone",
        ) from error


def _weights(model: str) -> Weights:
    """Read ORG/NAME[@REVISION] or a folder; UsageError for what is neither."""
    try:
        if model.startswith(("/", "~", ".")):
            path = Path(os.path.expanduser(model))  # noqa: PTH111 - raises for no home of nobody
            return Weights(path=str(path.absolute()))
        repo, at, revision = model.partition("@")
        return Weights(repo=repo, revision=revision) if at else Weights(repo=repo)
    except ValidationError as error:
        raise UsageError(
            f"--model {shown(model)} names neither a repository nor a folder",
            hint="ORG/NAME or ORG/NAME@REVISION as on the hub, or a folder that begins with "
            "/, ~ or . and has no control characters in its name",
        ) from error


def _findable(base: str) -> str:
    path = os.path.expanduser(base)  # noqa: PTH111 - raises for no home of nobody
    return str(Path(path).absolute()) if is_path(base) and os.path.exists(path) else base  # noqa: PTH110


def _described(draft: DraftRecipe, published: PublishedConfig, settings: Settings) -> DraftRecipe:
    """Add what the configuration and the family say; a recipe that it extends says the rest."""
    model = NewModel(draft.model, published)
    engine, family = engine_for(model, settings), model.family()
    least = engine.least_vllm()
    notes = [f"{model.describe()}; config.json {published.origin}.", *_sampling(published)]
    if draft.base is not None:
        return replace(draft, least=least, notes=(*notes, f"All else is {shown(draft.base)}'s."))
    serve = {"gpu_memory_utilization": Guess(f"{UTILIZATION}", "as the shipped recipes have it")}
    parsers = dict(_parsers(family, engine)) if family is not None else {}
    notes += engine.notes
    answers = model.answers()
    if answers.main is Task.CHAT:
        serve |= parsers
        notes += _parser_notes(family if parsers else None, engine)
    elif not answers.writes_text and answers.main is not Task.TRANSCRIPTIONS:
        serve["runner"] = Guess("pooling", f"it answers {answers.describe()}")
        if "rerank" in model.name.lower():
            notes.append(
                "A reranker may need serve.hf_overrides and a chat template: `sparkdeploy show "
                "qwen3-vl-reranker` has both."
            )
    guess = Guess(in_line(engine.engine.name), engine.why)
    return replace(draft, engine=guess, least=least, serve=serve, notes=tuple(notes))


def _parsers(family: Family, engine: ChosenEngine) -> Iterator[tuple[str, Guess]]:
    parsers, why = family.parsers, f"{family.parsers.source} name it for {family.name}"
    if parsers.reasoning and engine.has_parser("reasoning_parsers", parsers.reasoning):
        yield "reasoning_parser", Guess(in_line(parsers.reasoning), why)
    if parsers.tools and engine.has_parser("tool_parsers", parsers.tools):
        yield "tool_call_parser", Guess(in_line(parsers.tools), why)
        yield "enable_auto_tool_choice", Guess("true", "with the parser above")


def _parser_notes(family: Family | None, engine: ChosenEngine) -> Iterator[str]:
    if family is not None:
        yield from (family.parsers.needs,) if family.parsers.needs else ()
        return
    yield "No parsers for it in our table: thoughts and tool calls stay in the text."
    yield (
        "`sparkdeploy plan` with --set serve.tool_call_parser=list lists those of vLLM "
        f"{engine.engine.vllm}; serve.reasoning_parser has a list too."
    )


def _sampling(published: PublishedConfig) -> Iterator[str]:
    values = ((name, published.generation.get(name)) for name in SAMPLING)
    # JSON has numbers that are no float.
    named = [
        f"{name} {value:g}"
        for name, value in values
        if isinstance(value, int | float)
        and type(value) is not bool
        and abs(value) <= LARGEST_SAMPLING
    ]
    if named:
        yield f"Its own sampling, which vLLM takes by itself: {', '.join(named)}."


def _fitted(
    draft: DraftRecipe, published: PublishedConfig, settings: Settings
) -> tuple[DraftRecipe, str]:
    """Choose how many machines and which context; the longest that one request has room for."""
    ground = ground_for(here_or_spark(), settings)
    own = NewModel(draft.model, published).own_context()
    words, nodes = "", 1
    while nodes <= MOST_NODES:
        for tokens in _contexts(own):
            why = _fitting_words(tokens, own, nodes, ground)
            made = _with_context(replace(draft, nodes=nodes), tokens, why)
            verdict, words = _judge(made, ground, settings)
            if verdict is None or verdict.fits is Fits.UNKNOWN:
                why = "what config.json allows; whether it fits is not known"
                return _with_context(made, tokens, why), words
            if verdict.fits is Fits.YES:
                return made, words
            if verdict.requests is None:
                break  # The weights alone are too much, whatever the context.
        nodes *= 2
    why = f"does not fit, on {MOST_NODES} machines either"
    made = _with_context(draft, own or SHORTEST_CONTEXT, why)
    return made, f"fits no number of machines up to {MOST_NODES}: {words}"


def _contexts(own: int) -> Iterator[int]:
    """Yield the model's own context first, 0 where nobody says; then shorter ones."""
    yield own
    tokens = own // 2 if own else SHORTEST_CONTEXT
    while tokens >= SHORTEST_CONTEXT:
        yield tokens
        tokens //= 2


def _fitting_words(tokens: int, own: int, nodes: int, ground: Ground) -> str:
    hardware = shown(ground.reached.hardware.title)
    where = hardware if nodes == 1 else f"{nodes} of {hardware}"
    if not own:
        return f"config.json names no context; this one fits on {where}"
    if tokens == own:
        return f"what config.json allows, and it fits on {where}"
    return f"the longest that fits on {where}"


def _with_context(draft: DraftRecipe, tokens: int, why: str) -> DraftRecipe:
    if tokens:
        others = {key: guess for key, guess in draft.serve.items() if key != "max_model_len"}
        return replace(draft, serve={"max_model_len": Guess(str(tokens), why), **others})
    note = "config.json names no context: vLLM derives serve.max_model_len."
    return draft if note in draft.notes else replace(draft, notes=(*draft.notes, note))


def _resolved(draft: DraftRecipe, settings: Settings) -> Resolved:
    with tempfile.TemporaryDirectory(prefix="sparkdeploy-new-") as folder:
        path = Path(folder) / f"{draft.name}.yaml"
        path.write_text(draft.text(), encoding="utf-8")
        try:
            # Nothing is run: what the recipe that it extends asks for is judged when it is.
            return load_recipe(library(settings), str(path), ("allow_unsafe=true",))
        except RecipeError as error:
            # The file is named as the user knows it, not as it was tried.
            message = error.message.replace(str(path), path.name)
            detail = (error.detail or "").replace(str(path), path.name)
            mistakes = Mistakes(detail) if detail else None
            raise RecipeError(message, hint=error.hint, detail=mistakes) from error


def _judge(draft: DraftRecipe, ground: Ground, settings: Settings) -> tuple[FitVerdict | None, str]:
    resolved = _resolved(draft, settings)
    try:
        outlook = ground.outlook(resolved, WhenMissing.SHIPPED, cluster=draft.nodes > 1)
    except RecipeError:
        raise
    except SparkdeployError as error:
        return None, error.message
    return outlook.verdict, outlook.verdict_line()
