"""Which weights a recipe of others serves: a repository, or a place in a container of theirs."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from sparkdeploy.errors import RecipeError
from sparkdeploy.recipe.fields import REPOSITORY_PATTERN
from sparkdeploy.recipe.words import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkdeploy.recipe.document import ValueOrigin
    from sparkdeploy.recipe.foreign.draft import Draft
    from sparkdeploy.recipe.foreign.theirs import Theirs

_SNAPSHOT = re.compile(r".*/models--([^/]{1,200})--([^/]{1,200})/snapshots/([^/]+)/?")
"""A model's folder within a hub's cache."""


def put_model(theirs: Theirs, words: Sequence[str], draft: Draft) -> None:
    """Set the model: what the command serves, or else what the recipe names.

    `words` are those of the command that follow no flag, and `--model`'s. Raises RecipeError where
    no model is named, and for a folder of this machine that is no model's.
    """
    named = theirs.text_of("model").strip()
    served = words[0] if words else named
    if not served:
        raise RecipeError(f"{theirs.file}: no model is named", hint="add model: ORG/NAME")
    for word in words[1:]:
        draft.drop(theirs.origin_of_word(word), word, "a word that follows no flag")
    origin = theirs.origin("model") if served == named else theirs.origin_of_word(served)
    _put_weights(theirs, served, origin, draft)
    revision = theirs.content.get("model_revision")
    if revision is not None:
        said = f"model_revision: {revision}"
        draft.put(("model", "revision"), str(revision), theirs.origin("model_revision"), said)
    repo = draft.content["model"].get("repo")
    if re.search(REPOSITORY_PATTERN, named) and repo is None:
        draft.put(("model", "repo"), named, theirs.origin("model"), f"model: {named}")
    elif named and named not in (served, repo):
        draft.drop(theirs.origin("model"), f"model: {named}", f"the command serves {shown(served)}")


def host_path(theirs: Theirs, place: str) -> str | None:
    """Return the path on this machine, as `volumes` say; None for a name that is no path."""
    if not place.startswith(("/", "~", ".")):
        return None
    for volume in theirs.listed("volumes"):
        host, _, rest = str(volume).partition(":")
        inside = rest.partition(":")[0].rstrip("/")
        if inside and (place.rstrip("/") + "/").startswith(inside + "/"):
            return host.rstrip("/") + place.rstrip("/")[len(inside) :]
    return place


def _put_weights(theirs: Theirs, served: str, origin: ValueOrigin, draft: Draft) -> None:
    path, snapshot = host_path(theirs, served), _SNAPSHOT.fullmatch(served)
    if snapshot is not None:
        draft.put(("model", "repo"), f"{snapshot[1]}/{snapshot[2]}", origin, served)
        draft.put(("model", "revision"), snapshot[3], origin, served)
    elif path is None:
        draft.put(("model", "repo"), served, origin, served)
    else:
        _refuse_no_model(theirs, path, origin)
        draft.put(("model", "path"), path, origin, served)


def _refuse_no_model(theirs: Theirs, path: str, origin: ValueOrigin) -> None:
    """A folder that is not here may be elsewhere; one that is here has to be a model's."""
    place = theirs.file.parent / os.path.expanduser(path)  # noqa: PTH111 - a home of nobody
    if os.path.exists(place) and not os.path.isfile(place / "config.json"):  # noqa: PTH110, PTH113
        raise RecipeError(
            f"{origin}: {shown(path)} has no config.json: it is no model's folder",
            hint="--set model.path=FOLDER names another one",
        )
