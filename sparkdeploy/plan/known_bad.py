"""What a vLLM release is known to do wrong with a recipe, and what it is started with instead.

recipes/facts/known_bad.yaml has the rows; CONDITIONS says how each of their conditions is told.
"""

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from sparkdeploy import yaml_text
from sparkdeploy.checkpoint.layers import Architecture
from sparkdeploy.recipe.arguments import packages_of
from sparkdeploy.recipe.engine import Engine
from sparkdeploy.recipe.fields import Strict, VllmRelease
from sparkdeploy.recipe.flags import given_flags, value_of
from sparkdeploy.recipe.image_pins import is_unknown
from sparkdeploy.recipe.releases import family_of, parse_version
from sparkdeploy.recipe.schema import Recipe
from sparkdeploy.settings import resources

CACHES_UNASKED = (0, 26, 0)
"""From here on vLLM may cache prefixes of models with states unasked: 0.32 does, 0.25.1 not."""
MOE_BACKEND = "--moe-backend"
_EXPERTS = re.compile(r"[-_]a\d+(\.\d+)?b")
"""In the name of a model of which nobody has seen the layers: 35B-A3B."""


class KnownFailure(Strict):
    """One row: releases, conditions, what happens, and what helps."""

    name: str
    from_: Annotated[VllmRelease, Field(alias="from")]
    to: VllmRelease | None = None
    when: list[str] = Field(default_factory=list)
    why: str
    fix: str = ""
    arguments: list[str] = Field(default_factory=list)
    """A flag with its value, which a recipe that does not name it is started with."""
    source: str

    def holds(self, case: "RecipeOnEngine") -> bool:
        release = parse_version(case.engine.vllm)
        is_in = parse_version(self.from_) <= release
        is_in = is_in and (self.to is None or release <= parse_version(self.to))
        return is_in and all(CONDITIONS[it](case) for it in self.when)


@dataclass(frozen=True, slots=True)
class RecipeOnEngine:
    """A recipe on an engine, over so many GPUs; the layers where they are known."""

    recipe: Recipe
    engine: Engine
    gpus: int = 1
    architecture: Architecture | None = None

    @property
    def name(self) -> str:
        return self.recipe.model.known_as.lower()

    def choice(self, flag: str) -> bool | None:
        """Return what a recipe makes of a switch, however it is spelt; True for another flag."""
        name = flag.removeprefix("--").removeprefix("no-")
        for given in reversed([*given_flags(self.recipe.serve.extra_args)]):
            words = " ".join([given.spelling, *given.values]).replace("_", "-").lower()
            if given.form == "--kernel-config" and name in words:
                return "false" not in words.partition(name)[2].partition(",")[0]
            if given.form == f"--disable-{name.removeprefix('enable-')}":
                return False
            if given.flag == f"--{name}":
                return not given.form.startswith("--no-") and words.split()[1:] != ["false"]
        return None


@functools.cache
def rows() -> tuple[KnownFailure, ...]:
    content = yaml_text.load_file(resources() / "recipes" / "facts" / "known_bad.yaml")
    return tuple(map(KnownFailure.model_validate, content["rows"]))


def failures(case: RecipeOnEngine) -> Iterator[tuple[KnownFailure, bool]]:
    """Yield the rows that a case meets, and whether their arguments mend it; none for a CPU."""
    if case.engine.runs_on != "cuda" or is_unknown(case.engine):
        return
    for row in rows():
        choice = case.choice(row.arguments[0]) if row.arguments else None
        is_avoided = choice is False or (choice is True and len(row.arguments) > 1)
        if row.holds(case) and not is_avoided:
            yield row, bool(row.arguments) and choice is None


def mended(case: RecipeOnEngine) -> Recipe:
    added = [word for row, is_mended in failures(case) if is_mended for word in row.arguments]
    recipe, serve = case.recipe, case.recipe.serve
    if not added:
        return recipe
    update: dict[str, object] = {"extra_args": [*serve.extra_args, *added]}
    drafting = serve.speculative
    # What drafts has the model's choice otherwise: b12x runs no experts in 16 bits.
    is_open = drafting is not None and drafting.further.get("moe_backend") is None
    if MOE_BACKEND in added and drafting is not None and is_open:
        update["speculative"] = drafting.model_copy(update={"moe_backend": "auto"})
    return recipe.model_copy(update={"serve": serve.model_copy(update=update)})


def _keeps_states(case: RecipeOnEngine) -> bool:
    if case.architecture is not None:
        return case.architecture.recurrent is not None
    family = family_of(case.recipe.model.known_as)
    return family is not None and family.keeps_states


def _caches_prefixes(case: RecipeOnEngine) -> bool:
    asked = case.recipe.serve.enable_prefix_caching
    return parse_version(case.engine.vllm) >= CACHES_UNASKED if asked is None else asked


def _has_nvfp4_experts(case: RecipeOnEngine) -> bool:
    if case.architecture is None:
        has_experts = _EXPERTS.search(case.name) is not None
    else:
        has_experts = case.architecture.experts is not None
    return has_experts and "nvfp4" in case.name


def _has_b12x(case: RecipeOnEngine) -> bool:
    # It cannot divide experts over GPUs by their number.
    packages = packages_of(case.engine.lock or case.engine.name)
    is_divided = bool(case.recipe.serve.enable_expert_parallel)
    return case.engine.kind != "image" and "b12x" in packages and not is_divided


CONDITIONS: Mapping[str, Callable[[RecipeOnEngine], bool]] = {
    "keeps_states": _keeps_states,
    "caches_prefixes": _caches_prefixes,
    "drafts_by_mtp": lambda case: (
        case.recipe.serve.speculative is not None and case.recipe.serve.speculative.is_mtp
    ),
    "sleeps": lambda case: case.choice("--enable-sleep-mode") is True,
    "several_gpus": lambda case: case.gpus > 1,
    "fp8_blocks": lambda case: (
        "fp8" in case.name and case.recipe.serve.env.get("VLLM_USE_DEEP_GEMM") != "0"
    ),
    "nvfp4_experts": _has_nvfp4_experts,
    "has_b12x": _has_b12x,
    "takes_marlin": lambda case: value_of(case.recipe.serve.extra_args, MOE_BACKEND) == "marlin",
}
