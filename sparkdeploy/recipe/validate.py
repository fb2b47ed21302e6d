"""Hold a document against its model: every wrong value at once, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from sparkdeploy.recipe.document import written_part
from sparkdeploy.recipe.harmless import shown
from sparkdeploy.recipe.rules import Mistake
from sparkdeploy.recipe.words import closest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic_core import ErrorDetails

    from sparkdeploy.recipe.document import Document, KeyPath

T = TypeVar("T", bound=BaseModel)


def validated(document: Document, model: type[T]) -> tuple[T | None, list[Mistake]]:
    """Validate; on mistakes validate again without the wrong values, so that rules still run."""
    problems = [
        Mistake(path, "the key stands twice in one mapping", "keep one of them")
        for path in document.duplicates
    ]
    content: Any = document.content
    for _ in range(2):
        try:
            return model.model_validate(content), problems
        except ValidationError as error:
            details = error.errors(include_url=False)
            problems += [_problem(item, model) for item in details]
            # Deepest and last first, so that no removal moves what is removed after it.
            wrong = {written_part(tuple(item["loc"]), document.origins) for item in details}
            for path in sorted(wrong, reverse=True):
                content = _without(content, path)
    return None, problems


def _problem(item: ErrorDetails, model: type[BaseModel]) -> Mistake:
    path = tuple(item["loc"])
    if item["type"] == "extra_forbidden":
        return Mistake(path, "unknown key", _meant(path, model))
    if item["type"] == "missing":
        return Mistake(path, "missing", f"add {'.'.join(map(str, path))}")
    fix = item["msg"].removeprefix("Value error, ")
    return Mistake(path, f"{shown(repr(item.get('input')))} is wrong", fix)


def _meant(path: KeyPath, model: type[BaseModel]) -> str:
    """Return a hint: the same key where it belongs, the one beside it that is near, or all."""
    wanted = str(path[-1])
    elsewhere = [at for at in _all_paths(model, ()) if at[-1] == wanted]
    if len(elsewhere) == 1:
        return f"did you mean {'.'.join(elsewhere[0])}?"
    return closest(wanted, _keys_at(model, path[:-1]))


def _all_paths(model: type[BaseModel], above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for name, field in model.model_fields.items():
        path = (*above, field.alias or name)
        yield path
        if (below := _model_in(field.annotation)) is not None:
            yield from _all_paths(below, path)


def _keys_at(model: type[BaseModel], path: KeyPath) -> list[str]:
    current: type[BaseModel] | None = model
    for key in path:
        field = current.model_fields.get(str(key)) if current is not None else None
        current = _model_in(field.annotation) if field is not None else None
    if current is None:
        return []
    return [info.alias or name for name, info in current.model_fields.items()]


def _model_in(annotation: Any) -> type[BaseModel] | None:  # noqa: ANN401 - a type expression
    candidates = (annotation, *getattr(annotation, "__args__", ()))
    return next((item for item in candidates if hasattr(item, "model_fields")), None)


def _without(content: Any, path: KeyPath) -> Any:  # noqa: ANN401 - YAML content
    if not path or not isinstance(content, dict | list):
        return content
    key, below = path[0], path[1:]
    kept = {
        name: _without(value, below) if name == key else value
        for name, value in (content.items() if isinstance(content, dict) else enumerate(content))
        if below or name != key
    }
    return kept if isinstance(content, dict) else list(kept.values())
