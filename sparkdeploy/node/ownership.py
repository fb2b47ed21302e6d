"""Which containers are sparkdeploy's own: what their labels say and what they are named agree.

Everybody who may use a Docker Engine can write any label on anything. A label alone, or a name
alone, is therefore no reason to stop, rename or remove a container.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sparkdeploy import labels
from sparkdeploy.recipe.schema import NAME_PATTERN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

NAME_START = "sparkdeploy-"
TAG_START = "sparkdeploy/"
REPLACED_SUFFIX = "-replaced"
KEPT_MARK = "-kept-"
_ENDING = re.compile(rf"|{REPLACED_SUFFIX}|{KEPT_MARK}[1-9][0-9]{{0,8}}")


def is_ours(name: str, marks: Mapping[str, str]) -> bool:
    """Say whether a container of that name and with those labels is a deployment's."""
    deployment = marks.get(labels.DEPLOYMENT, "")
    if marks.get(labels.KIND) != "container" or not is_name(deployment):
        return False
    # `up` takes no such names: their containers would look like another deployment's.
    if deployment.endswith(REPLACED_SUFFIX) or KEPT_MARK in deployment:
        return False
    start = NAME_START + deployment
    return name.startswith(start) and _ENDING.fullmatch(name.removeprefix(start)) is not None


def own_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Return the tags that sparkdeploy gives to images."""
    return tuple(tag for tag in tags if tag.startswith(TAG_START))


def is_name(text: str) -> bool:
    """Say whether a label's value may be the name of a deployment, a recipe or a node."""
    return re.fullmatch(NAME_PATTERN, text) is not None
