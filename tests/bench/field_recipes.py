"""What becomes of recipes of others: planned or refused, what is missing, which lines were lost.

    python -m tests.bench.field_recipes FOLDER [FOLDER ...]

docs/other-recipes.md names what it counted. Nothing is downloaded or started. Exit code 1
when a word of a recipe is neither translated nor named in its report.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from sparkdeploy.errors import SparkdeployError
from sparkdeploy.recipe.foreign.report import Translation
from sparkdeploy.recipe.image_name import is_tag
from sparkdeploy.recipe.load import Library, Loaded, look_into
from sparkdeploy.settings import resources

READ_BY_PARTS = {"defaults", "env", "command", "model"}
FLAG = re.compile(r"(?<=\s)--?[A-Za-z][A-Za-z0-9_.-]*")
TOP = 12


def main(folders: list[str]) -> int:
    library = Library((resources() / "recipes",))
    lost = [line for folder in folders for line in count(library, Path(folder))]
    print("\n".join(["lines lost in silence:", *lost]) if lost else "no line was lost in silence")
    return 1 if lost else 0


def count(library: Library, folder: Path) -> list[str]:
    """Print the counts of a folder's recipes; return the words that were lost."""
    outcomes, brought, left_out = Counter[str](), Counter[str](), Counter[str]()
    lost = []
    for file in sorted(folder.rglob("*.y*ml")):
        try:
            loaded = look_into(library, str(file))
        except SparkdeployError as error:
            outcomes[f"refused: {kind_of(error)}"] += 1
            continue
        if loaded.translation is None:
            outcomes["not a recipe of others"] += 1
            continue
        outcomes.update(outcome(loaded))
        if not loaded.mistakes:
            brought.update(what_it_brings(loaded))
        left_out.update({name_of(note.theirs) for note in loaded.translation.dropped})
        lost += [f"{file}: {word}" for word in words_lost(file, loaded.translation)]
    print(folder)
    for title, counts in (("files", outcomes), ("of the planned", brought), ("left out", left_out)):
        print(f"  {title}: " + "; ".join(f"{name} {n}" for name, n in counts.most_common(TOP)))
    return lost


def kind_of(error: SparkdeployError) -> str:
    """Return which of the refusals it is, without the names in it."""
    kinds = {"the recipe is for": "for another server", "is no recipe": "no recipe"}
    kinds |= {"author's own machine": "an image of the author's own machine"}
    found = (name for words, name in kinds.items() if words in error.message)
    return next(found, "cannot be read")


def outcome(loaded: Loaded) -> list[str]:
    if loaded.mistakes:
        return ["for vLLM", f"refused: {loaded.mistakes[0].message[:60]}..."]
    return ["for vLLM", "planned", *([] if loaded.consents else ["planned without consent"])]


def what_it_brings(loaded: Loaded) -> list[str]:
    """Return what `up` pins, builds, lacks or asks for, and what the plan warns of."""
    assert loaded.resolved is not None
    by_tag, mods = is_tag(loaded.resolved.engine.image), loaded.resolved.mods
    fields = {".".join(map(str, finding.path[:2])) for finding in loaded.consents}
    return [
        *([] if by_tag or mods else ["neither tag nor mods"]),
        *(["image by its tag"] if by_tag else []),
        *(["mods"] if mods else []),
        *(["mods that are not here"] if any(mod.is_missing for mod in mods) else []),
        *(["warned of arguments"] if loaded.warnings else []),
        *sorted({f"consent to {re.sub('[.][0-9].*', '', name)}" for name in fields}),
    ]


def name_of(line: str) -> str:
    return line.partition(":")[0].partition(" ")[0]


def words_lost(file: Path, translation: Translation) -> list[str]:
    """Return flags, variables and keys that no note of the report names."""
    content: dict[str, Any] = yaml.safe_load(file.read_text())
    notes = (*translation.translated, *translation.dropped)
    told = " ".join(note.theirs for note in notes)
    keys = [str(key) for key, value in content.items() if key not in READ_BY_PARTS and value != []]
    return [
        *sorted(flag for flag in flags(content.get("command") or "") if flag not in told),
        *(name for name in content.get("env") or {} if name not in told),
        *(key for key in keys if not any(note.theirs.startswith(key) for note in notes)),
    ]


def flags(command: str) -> set[str]:
    lines = (line for line in command.splitlines() if not line.strip().startswith("#"))
    return set(FLAG.findall("\n".join(lines)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
