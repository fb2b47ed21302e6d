"""Hold a document against its model: every wrong value at once, in words."""

from collections.abc import Iterator
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from sparkdeploy.recipe.document import Document, KeyPath, written_part
from sparkdeploy.recipe.rules import Mistake
from sparkdeploy.recipe.words import closest, shown
from sparkdeploy.yaml_text import in_line

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
            found = _by_place(error, content)
            problems += [_problem(path, items, model) for path, items in found.items()]
            # Deepest and last first, so that no removal moves what is removed after it.
            wrong = {written_part(path, document.origins) for path in found}
            for path in sorted(wrong, reverse=True):
                content = _without(content, path)
    return None, problems


def _by_place(error: ValidationError, content: object) -> dict[KeyPath, list[ErrorDetails]]:
    """Return what is wrong by where it stands; where a value may be of several kinds, of the kind
    that it comes nearest to."""
    found: dict[KeyPath, list[ErrorDetails]] = {}
    for item in error.errors(include_url=False):
        found.setdefault(_place(item, content), []).append(item)
    # A mapping that is wrong inside is no wrong kind of value as well.
    return {
        path: items
        for path, items in found.items()
        if not any(len(it) > len(path) and it[: len(path)] == path for it in found)
    }


def _place(item: ErrorDetails, content: Any) -> KeyPath:  # noqa: ANN401 - YAML content
    """Return the keys that lead to a value, without pydantic's names for kinds of values."""
    *above, last = item["loc"]
    path: list[str | int] = []
    for key in above:
        if _has(content, key):
            content = content[key]
            path.append(key)
    if item["type"] == "missing" or _has(content, last):
        path.append(last)
    return tuple(path)


def _has(content: Any, key: str | int) -> bool:  # noqa: ANN401 - YAML content
    if isinstance(content, list):
        return isinstance(key, int)
    return isinstance(content, dict) and key in content


def _problem(path: KeyPath, items: list[ErrorDetails], model: type[BaseModel]) -> Mistake:
    kinds = {item["type"] for item in items}
    if "extra_forbidden" in kinds:
        return Mistake(path, "unknown key", _meant(path, model))
    if "missing" in kinds:
        return Mistake(path, "missing", f"add {'.'.join(map(str, path))}")
    first, *others = (_wanted(item) for item in items)
    fix = " or ".join((first, *(it.removeprefix("Input should be ") for it in others)))
    if "string_pattern_mismatch" in kinds:
        fix += _example(path, model)
    return Mistake(path, f"{shown(repr(items[0].get('input')))} is wrong", fix)


def _wanted(item: ErrorDetails) -> str:
    # A model's name is Python's, and nobody's who writes YAML.
    if item["type"] in ("model_type", "dict_type"):
        return "Input should be a mapping"
    return item["msg"].removeprefix("Value error, ")


def _example(path: KeyPath, model: type[BaseModel]) -> str:
    """Return one that may be written: a pattern tells few people what is meant."""
    *above, last = (key for key in path if not isinstance(key, int))
    fields = _fields_at(model, tuple(above))
    field = next((it for name, it in fields.items() if last in (name, it.alias)), None)
    examples = field.examples if field is not None else None
    return f"; for example {in_line(examples[0])}" if examples else ""


def _meant(path: KeyPath, model: type[BaseModel]) -> str:
    """Return a hint: the same key where it belongs, the one beside it that is near, or all."""
    wanted = str(path[-1])
    elsewhere = [at for at in _all_paths(model, ()) if at[-1] == wanted]
    if len(elsewhere) == 1:
        return f"did you mean {'.'.join(elsewhere[0])}?"
    fields = _fields_at(model, path[:-1])
    return closest(wanted, [info.alias or name for name, info in fields.items()])


def _all_paths(model: type[BaseModel], above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for name, field in model.model_fields.items():
        path = (*above, field.alias or name)
        yield path
        if (below := _model_in(field.annotation)) is not None:
            yield from _all_paths(below, path)


def _fields_at(model: type[BaseModel], path: KeyPath) -> dict[str, FieldInfo]:
    """Return the fields of the mapping at a path; none where it is none of the format's."""
    current: type[BaseModel] | None = model
    for key in path:
        if isinstance(key, int):
            continue  # each item of a list is alike
        field = current.model_fields.get(key) if current is not None else None
        current = _model_in(field.annotation) if field is not None else None
    return current.model_fields if current is not None else {}


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
