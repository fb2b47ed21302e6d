"""Every field of every file that users write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args, get_origin

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from sparkdeploy.gateway.stack import StackFile
from sparkdeploy.node.cluster import ClusterConfig
from sparkdeploy.recipe.engine import Engine
from sparkdeploy.recipe.schema import Recipe
from sparkdeploy.settings import ConfigFile


def fields_of(model: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        yield field.alias or name, field


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the models that a field's value may be, or is a list of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for part in get_args(annotation) for found in models_in(part)]


def parts_of(annotation: Any) -> set[Any]:
    """Return the types that an annotation is made of, and its choices."""
    if annotation is type(None):
        return set()
    if get_origin(annotation) in {list, tuple, dict}:
        return {get_origin(annotation)}
    arguments = get_args(annotation)
    if not arguments:
        return {annotation}
    return {found for part in arguments for found in parts_of(part)}


def every_model(*models: type[BaseModel]) -> list[type[BaseModel]]:
    found = list(models)
    for model in found:
        for _, field in fields_of(model):
            found += [kind for kind in models_in(field.annotation) if kind not in found]
    return found


MODELS = every_model(Recipe, Engine, ConfigFile, ClusterConfig, StackFile)
FIELDS = [
    pytest.param(model, name, field, id=f"{model.__name__}.{name}")
    for model in MODELS
    for name, field in fields_of(model)
    if not (models_in(field.annotation) and field.description is None)
    and (model, name) != (ConfigFile, "cluster")
]
