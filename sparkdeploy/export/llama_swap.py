"""`export llama-swap`: a stack as llama-swap's configuration, for those who keep to it.

Each model is `up --stay` on its own port, which lasts as long as the server, and `stop`. What fits
together becomes its matrix, and what a start costs its eviction costs and its time-out.
"""

import math
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sparkdeploy import yaml_text
from sparkdeploy.deploy.request import up_words
from sparkdeploy.errors import UsageError
from sparkdeploy.export.compose_file import WRITTEN_BY, Export, ExportedFile
from sparkdeploy.export.deployment import folder_variables, refuse_variables
from sparkdeploy.gateway.plans import PlannedModel, StackPlan
from sparkdeploy.settings import Settings
from sparkdeploy.shell import AS_MODULE

CONFIG = "config.yaml"
MACRO = "${"
"""Begins what llama-swap puts something else for."""
MOST_SETS = 200
MOST_REQUESTS = 1024
"""Beyond it llama-swap answers 429; vLLM's own queue is longer."""
SPARE = 2
"""How many times as long as the last start a start may take."""
STOP_S = 120


def export_llama_swap(plan: StackPlan, settings: Settings, env: Mapping[str, str]) -> Export:
    """Return llama-swap's configuration of a stack; models that never start in it are left out."""
    kept = {it.model.name for it in plan.always}
    members = [it for it in plan.members if plan.fit.fits(kept, it.model.name)]
    for member in members:
        refuse_variables(member.request, settings)
    config: dict[str, Any] = {
        "healthCheckTimeout": max((_timeout_s(plan, it) for it in members), default=STOP_S),
        "unloadTimeout": STOP_S,
        "includeAliasesInList": True,
        "models": {it.model.name: _model(plan, it, env) for it in members},
    }
    if members:
        matrix = _matrix(plan, [it.model.name for it in members])
        config["routing"] = {"router": {"use": "matrix", "settings": {"matrix": matrix}}}
    if plan.always:
        preload = [it.model.name for it in plan.always]
        config["hooks"] = {"on_startup": {"preload": preload}}
    text = yaml_text.dump(config)
    if found := next((line for line in text.splitlines() if MACRO in line), None):
        raise UsageError(f"llama-swap would expand {MACRO} in {found.strip()!r}")
    up = shlex.join(["sparkdeploy", "up", str(plan.stack.path), "--prepare"])
    head = f"# {WRITTEN_BY} llama-swap`.\n# Images and weights are made by: {up}\n"
    listen = f"{plan.stack.host}:{plan.stack.port}"
    return Export(
        (ExportedFile(CONFIG, head + text),),
        next_step=f"{up} && llama-swap --config {CONFIG} --listen {listen}",
        notes=tuple(_notes(plan, members)),
    )


def _model(plan: StackPlan, member: PlannedModel, env: Mapping[str, str]) -> dict[str, Any]:
    model, program = member.model, (sys.executable, *AS_MODULE)
    defaults = {name: dict(it) for name, it in model.other_names.items() if it}
    return {
        "cmd": shlex.join([*program, *up_words(member.request), "--yes", "--stay"]),
        "cmdStop": shlex.join([*program, "stop", model.name]),
        "env": [f"{name}={value}" for name, value in folder_variables(env)],
        "proxy": member.plan.base_url,
        "checkEndpoint": "/health",
        "ttl": _ttl_s(plan, member),
        "aliases": [*model.other_names],
        "useModelName": model.name,
        "concurrencyLimit": MOST_REQUESTS,
        **({"filters": {"setParamsByID": defaults}} if defaults else {}),
    }


def _ttl_s(plan: StackPlan, member: PlannedModel) -> int:
    """Return after how many idle seconds llama-swap ends a model; 0: it does not."""
    match member.model.keep:
        case "always":
            return 0
        case "idle":
            return member.model.idle_stop_s or 0
        case "request":
            return max(plan.stack.smallest_stay_s, 1)


def _timeout_s(plan: StackPlan, member: PlannedModel) -> int:
    """Return how long a start may take: by the last one here, or as the recipe allows."""
    fit = plan.fit[member.model.name]
    allowed_s = member.resolved.recipe.limits.startup_timeout_s
    is_known = fit.is_measured and fit.start_s is not None
    return max(math.ceil(SPARE * fit.start_s if is_known and fit.start_s else allowed_s), STOP_S)


def _matrix(plan: StackPlan, names: Sequence[str]) -> dict[str, Any]:
    """Return the sets that may run together; each has all that is kept always."""
    variables = {name: f"m{number}" for number, name in enumerate(names, 1)}
    kept = {it.model.name for it in plan.always}
    sets = [it for it in plan.fit.largest_sets(MOST_SETS) if kept <= set(it)]
    if len(sets) == MOST_SETS:
        raise UsageError(f"more than {MOST_SETS} sets of models fit: llama-swap needs fewer models")
    costs = {variables[it]: max(math.ceil(plan.fit[it].start_s or 1), 1) for it in names}
    return {
        "vars": {variable: name for name, variable in variables.items()},
        "evict_costs": costs,
        "sets": {
            f"set{number}": " & ".join(variables[it] for it in found)
            for number, found in enumerate(sets, 1)
        },
    }


def _notes(plan: StackPlan, members: Sequence[PlannedModel]) -> Iterator[str]:
    if left := [it.model.name for it in plan.members if it not in members]:
        yield f"left out, for there is no memory for it beside what is kept: {', '.join(left)}"
    if any(any(it.model.other_names.values()) for it in members):
        yield "llama-swap puts an alias's values in the place of what a client sends"
    if plan.stack.keys_file is not None:
        yield f"the keys of {plan.stack.keys_file} are not copied: apiKeys takes them, or variables"
