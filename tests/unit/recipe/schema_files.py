"""The formats of recipes, engines and config.yaml as JSON schemas, as they are shipped."""

from __future__ import annotations

import json
from typing import Any

from pydantic import create_model

from sparkdeploy.about import FLAG, UNIT
from sparkdeploy.folders import SchemaKind
from sparkdeploy.gateway.stack import StackFile
from sparkdeploy.node.cluster import ClusterConfig
from sparkdeploy.recipe.document import SECTIONS
from sparkdeploy.recipe.engine import Engine
from sparkdeploy.recipe.flags import JSON_FLAGS, SWITCH_FLAGS, VALUE_FLAGS
from sparkdeploy.recipe.schema import Recipe
from sparkdeploy.settings import ConfigFile

DIALECT = "https://json-schema.org/draft/2020-12/schema"
TITLES = {
    "recipe": "A recipe of sparkdeploy",
    "engine": "An engine of sparkdeploy",
    "config": "sparkdeploy's config.yaml",
    "stack": "A stack of sparkdeploy",
}
BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
OF_EVERY_RECIPE = ("name", "title")
"""What no recipe inherits."""
WHOLE = ("Expect", "LoraAdapter", "Mod")
"""Mappings that no parent completes: they are inherited whole, or not at all."""


def schema_text(kind: SchemaKind) -> str:
    """Return the JSON schema of a format: it takes what the loader takes, and what only the loader
    can judge (contradictions, flags, names)."""
    made = {
        "recipe": _of_recipes,
        "engine": _of_engines,
        "config": _of_config,
        "stack": _of_stacks,
    }[kind]()
    schema = {"$schema": DIALECT, "title": TITLES[kind], **_plain(made)}
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def _of_recipes() -> dict[str, Any]:
    """A recipe that extends another may leave out what that one says."""
    schema = Recipe.model_json_schema()
    for name, flag in (VALUE_FLAGS | SWITCH_FLAGS | JSON_FLAGS).items():
        schema["$defs"]["Serve"]["properties"][name][FLAG] = flag
    for name, definition in schema["$defs"].items():
        if name not in WHOLE:
            definition.pop("required", None)
    for section in SECTIONS:
        told = schema["properties"][section]
        schema["properties"][section] = {"anyOf": [told, {"type": "null"}]}
    alone = [key for key in schema.pop("required") if key not in OF_EVERY_RECIPE]
    complete = [{"required": ["extends"]}, {"required": alone}]
    return {**schema, "required": list(OF_EVERY_RECIPE), "anyOf": complete}


def _of_engines() -> dict[str, Any]:
    return Engine.model_json_schema()


def _of_stacks() -> dict[str, Any]:
    return StackFile.model_json_schema()


def _of_config() -> dict[str, Any]:
    """The cluster is checked only by commands that need it, and so is a model of its own."""
    cluster: Any = (ClusterConfig | None, None)
    return create_model("Config", __base__=ConfigFile, cluster=cluster).model_json_schema()


def _plain(schema: Any) -> Any:
    """Return a schema without titles that only repeat names, and with its own words in one."""
    if isinstance(schema, list):
        return [_plain(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {
        _keyword(key, value): _plain(value)
        for key, value in schema.items()
        # A field may be called so.
        if not (key == "title" and isinstance(value, str))
    }
    if isinstance(kept.get("description"), str):
        kept["description"] = _description(kept)
    return kept


def _keyword(key: str, value: object) -> str:
    """Return JSON Schema's word for a bound; pydantic keeps its own behind a validator of ours."""
    return BOUNDS.get(key, key) if isinstance(value, int | float) else key


def _description(schema: dict[str, Any]) -> str:
    """Editors show this alone."""
    words = [" ".join(schema["description"].split())]
    words += [f"Unit: {schema[UNIT]}."] if UNIT in schema else []
    words += [f"Becomes {schema[FLAG]}."] if FLAG in schema else []
    return " ".join(words)
