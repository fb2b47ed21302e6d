"""Which recipes fit a machine: each alone (`list`, `recipe search --fits`), or several (`fits`)."""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict

from sparkdeploy.authoring.model_facts import WhenMissing
from sparkdeploy.authoring.outlook import VERDICT_INKS, Ground, ground_for
from sparkdeploy.errors import SparkdeployError
from sparkdeploy.estimate.hardware import HERE, facts_folder, hardware_named, read_hardware
from sparkdeploy.estimate.verdict import Fits, Tenant, Together
from sparkdeploy.recipe.load import Resolved, load_recipe
from sparkdeploy.recipe.report import FIT_INKS
from sparkdeploy.settings import load_settings
from sparkdeploy.terminal.style import Piece, Style
from sparkdeploy.terminal.tables import Block, Fill, TextColumn, TextRow, TextTable, row_of
from sparkdeploy.units import format_gib

TITLES = ("claims", "share", "least share")
BROKEN = "broken"


def fitting_rows(ground: Ground) -> list[dict[str, object]]:
    return [
        fitting_row(ground, item)
        if isinstance(item, Resolved)
        else {"recipe": name, "fits": BROKEN, "machines": 1, "reason": item.in_one_line}
        for name, item in ground.loaded.items()
    ]


def fitting_row(ground: Ground, resolved: Resolved) -> dict[str, object]:
    name, least = resolved.recipe.name, resolved.recipe.cluster.least_nodes
    try:
        # A recipe for several machines is judged by one machine's share.
        outlook = ground.outlook(resolved, WhenMissing.NOBODY, cluster=least > 1)
    except SparkdeployError as error:
        unknown = {"recipe": name, "fits": Fits.UNKNOWN.value, "machines": least}
        return {**unknown, "reason": error.message}
    verdict = {**asdict(outlook.verdict), "fits": outlook.verdict.fits.value}
    words = {"line": outlook.verdict_line(), "words": outlook.verdict_words()}
    return {"recipe": name, **verdict, "machines": outlook.nodes, **words}


def fit_words(rows: Iterable[Mapping[str, object]]) -> dict[str, str]:
    """Return one word for each recipe: `fits`, `on 2` for machines together, `no`, or `?`."""
    return {str(row["recipe"]): _fit_word(row) for row in rows}


def _fit_word(row: Mapping[str, object]) -> str:
    words = {Fits.YES.value: "fits", Fits.NO.value: "no", BROKEN: BROKEN}
    word = words.get(str(row["fits"]), "?")
    return f"on {row['machines']}" if word == "fits" and row["machines"] != 1 else word


def fitting_lines(rows: Sequence[Mapping[str, object]], hardware: str) -> Iterator[Block]:
    """Yield a row a recipe under the machine's name; `hardware` as it was asked for."""
    title = "this machine"
    if hardware != HERE:
        title = hardware_named(hardware, read_hardware(facts_folder() / "hardware.yaml")).title
    yield f"on {title} (? may fit: what is not known is told; on 2: two of them)"
    columns = (TextColumn(), TextColumn(), TextColumn("", Fill.WORDS))
    yield TextTable(columns, tuple(map(_fitting_row, rows)), indent=2)


def _fitting_row(row: Mapping[str, object]) -> TextRow:
    word = _fit_word(row)
    verdict = Piece(word, FIT_INKS.get(word.split()[0], Style.CAUTION))
    return row_of(str(row["recipe"]), verdict, str(row.get("words") or row["reason"]))


def together(wanted: Sequence[str], hardware: str) -> Together:
    ground = ground_for(hardware, load_settings())
    members = tuple(
        _member(ground, load_recipe(ground.recipe_library, name), name) for name in wanted
    )
    return Together(ground.reached.hardware, members)


def _member(ground: Ground, resolved: Resolved, name: str) -> Tenant:
    outlook, recipe = ground.outlook(resolved, WhenMissing.SHIPPED), resolved.recipe
    fits, reason = outlook.verdict.fits, outlook.verdict.reason
    if recipe.cluster.least_nodes > 1:
        fits, reason = Fits.NO, f"it is for {recipe.cluster.least_nodes} machines"
    return Tenant(name, recipe.serve.port, outlook.budget, fits, reason)


def together_lines(found: Together) -> Iterator[Block]:
    title = found.hardware.title
    yield (Piece(f"{found.fits.value} on {title}: {found.reason}", VERDICT_INKS[found.fits]),)
    columns = (TextColumn(), *(TextColumn(head, Fill.FIGURE) for head in TITLES))
    yield TextTable(columns, tuple(map(_member_row, found.members)), indent=2)
    commands = start_commands(found)
    if not commands:
        yield "no shares of memory are known with which they fit"
        return
    if found.fits is Fits.NO:
        yield "they fit with less each, where every one still serves a request of its own context:"
    yield from (f"  {command}" for command in commands)


def _member_row(member: Tenant) -> TextRow:
    least = "?" if member.least_share is None else f"{member.least_share:g}"
    claims, share = format_gib(member.budget.claim_bytes), f"{member.budget.utilization:g}"
    return row_of(member.recipe, claims, share, least)


def start_commands(found: Together) -> list[str]:
    """Return what starts each beside the others; nothing where no shares are known that fit."""
    wanted = tuple(item.budget.utilization for item in found.members)
    shares = found.shares() if found.fits is Fits.NO else wanted
    taken: set[int] = set()
    commands = []
    for number, (member, share) in enumerate(zip(found.members, shares or (), strict=False), 1):
        port = next(it for it in range(member.port, 65536) if it not in taken)
        taken.add(port)
        words = ["sparkdeploy", "up", member.recipe]
        words += ["--name", f"model-{number}"] if number > 1 else []
        words += ["--set", f"serve.port={port}"] if port != member.port else []
        changed = share != member.budget.utilization
        words += ["--set", f"serve.gpu_memory_utilization={share:g}"] if changed else []
        commands.append(shlex.join(words))
    return commands


def together_as_dict(found: Together) -> dict[str, object]:
    return {
        "schema": 1,
        "hardware": found.hardware.name,
        "fits": found.fits.value,
        "reason": found.reason,
        "memory_bytes": found.hardware.memory_bytes,
        "claimed_bytes": found.claimed_bytes,
        "kept_bytes": found.kept_bytes,
        "recipes": [
            {
                "recipe": item.recipe,
                "fits_alone": item.fits_alone.value,
                "reason": item.reason,
                "claimed_bytes": item.budget.claim_bytes,
                "share": item.budget.utilization,
                "least_share": item.least_share,
            }
            for item in found.members
        ],
        "commands": start_commands(found),
    }
