"""`--on NODE`: the same command, run by that node's own sparkdeploy.

A recipe that is named by its file goes there by ssh's standard input, with what it extends, its
chat template and its mods. Every other name and path is that machine's.
"""

import io
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from sparkdeploy.errors import RecipeError, UsageError
from sparkdeploy.image.context import ContextFile, write_tar
from sparkdeploy.image.mods import read_mod
from sparkdeploy.node.cluster import configured
from sparkdeploy.node.ssh import SshLink, SshTarget, prepare, run_attached
from sparkdeploy.recipe.consent import consent_hint
from sparkdeploy.recipe.document import read_document
from sparkdeploy.recipe.library import parent_beside
from sparkdeploy.recipe.mods import FoundMod, mod_folder
from sparkdeploy.recipe.paths import MAX_TEMPLATE_BYTES
from sparkdeploy.recipe.sources import Sources
from sparkdeploy.settings import ON_VARIABLE, Settings
from sparkdeploy.stored_json import read_unlinked
from sparkdeploy.terminal.console import console

CONSENT = "--allow-unsafe"
LOCAL_PATHS = re.compile(r"-o(?!-)|(--output|--image)(?==|$)")
"""Options whose value is a path of the machine where they are typed."""
# What begins with a dash would be an option to ssh.
DESTINATION = re.compile(r"(?:ssh://)?(?:\w[\w.-]*@)?[\w\[][\w.:%\[\]-]*/?")


def run_on(node: str, argv: Sequence[str], settings: Settings) -> int:
    """Run a command on a node and return its exit code."""
    target = target_of(node, settings)
    _refuse_local_paths(node, argv)
    recipes = [word for word in argv if _is_recipe_file(word)]
    files: dict[str, ContextFile] = {}
    for word in recipes:
        _add_recipe(Path(word), files, Sources.below(settings.state_dir), consented=CONSENT in argv)
    archive = io.BytesIO()
    if files:
        write_tar(files.values(), archive)
    login = f"{target.user}@{target.address}" if target.user else target.address
    with SshLink(target) as link:
        cache, folder = prepare(link, archive.getvalue())
        words = [f"{folder}/{_place(Path(it))}" if it in recipes else it for it in argv]
        code = run_attached(link, target, words, {ON_VARIABLE: login}, cache)
    if code == RecipeError.exit_code:
        _say_how_to_send(argv, settings.config_dir / "recipes")
    return code


def target_of(node: str, settings: Settings) -> SshTarget:
    """Return a configured node by its name, else what OpenSSH makes of the words."""
    if settings.cluster is not None:
        for known in configured(settings).nodes:
            if known.name == node:
                return known.target
    if not DESTINATION.fullmatch(node):
        raise UsageError(
            f"unknown node {node!r}: not in config.yaml, and not an ssh destination",
            hint="a node's name, HOST, USER@HOST, a Host of ~/.ssh/config or ssh://USER@HOST:PORT",
        )
    if node.startswith("ssh://") or "@" not in node:
        return SshTarget(node, node)
    user, _, address = node.partition("@")
    return SshTarget(node, address, user)


def _say_how_to_send(argv: Sequence[str], folder: Path) -> None:
    """Say of the user's own recipes among the arguments that their names are not sent."""
    for word in argv:
        file = folder / f"{word}.yaml"
        if file.stem == word and os.path.isfile(file):  # noqa: PTH113 - never raises
            console.info(f"to send {word} of this machine, give its file: {shlex.quote(str(file))}")


def _refuse_local_paths(node: str, argv: Sequence[str]) -> None:
    options = argv[: argv.index("--")] if "--" in argv else argv
    for option in filter(None, map(LOCAL_PATHS.match, options)):
        there = shlex.join(["ssh", "-t", node, shlex.join(["sparkdeploy", *argv])])
        raise UsageError(
            f"{option[0]} names a path of this machine, and --on runs the command on {node}",
            hint=f"copy the file there if it is read, and name it as that machine does: {there}",
        )


def _is_recipe_file(word: str) -> bool:
    is_named_so = word.endswith((".yaml", ".yml")) and not word.startswith("-")
    return is_named_so and os.path.isfile(word)  # noqa: PTH113 - never raises


def _place(path: Path) -> str:
    """Return a file's place in the archive, where all lie to one another as they do here."""
    return os.path.abspath(path).lstrip("/")  # noqa: PTH100 - links are kept as they are named


def _add_recipe(
    path: Path, files: dict[str, ContextFile], sources: Sources, *, consented: bool
) -> None:
    """Add a recipe or a stack with its files; without consent only what it could mount here."""
    if _place(path) in files:
        return
    content = read_document(path).content
    _add_file(path, path.resolve(), files)
    for recipe in _recipes_of_stack(content.get("models"), path.parent):
        _add_recipe(recipe, files, sources, consented=consented)
    parent, serve, mods = (content.get(key) for key in ("extends", "serve", "mods"))
    if isinstance(parent, str) and (beside := parent_beside(path, parent, sources)):
        _add_recipe(beside, files, sources, consented=consented)
    template = serve.get("chat_template") if isinstance(serve, dict) else None
    if isinstance(template, str) and template and not template.startswith(("/", "~")):
        meant = Path(os.path.realpath(path.parent / template))
        if not consented:
            why = f"{meant} is a file of this machine, which is sent with your consent only"
            raise _not_sent(path, f"serve.chat_template: {why}")
        if meant.is_file():
            _add_file(path.parent / template, meant, files)
    for folder in _mod_folders(mods, path.parent):
        if not consented:
            raise _not_sent(path, f"mods: {folder} is code, which is sent with your consent only")
        for file in read_mod(FoundMod(folder.name, folder, "", needs_network=False)).files:
            place = f"{_place(folder)}/{file.path}"
            files[place] = ContextFile(place, file.content, file.mode)


def _recipes_of_stack(models: object, beside: Path) -> Iterator[Path]:
    for model in models if isinstance(models, list) else []:
        name = model.get("recipe") if isinstance(model, dict) else None
        if isinstance(name, str) and not name.startswith(("/", "~")):
            path = beside / name
            if _is_recipe_file(str(path)):
                yield path


def _not_sent(path: Path, why: str) -> RecipeError:
    return RecipeError(f"{path}: {why}", hint=consent_hint(str(path)))


def _mod_folders(mods: object, beside: Path) -> Iterator[Path]:
    """Yield the folders of mods beside or above a recipe; the node looks the same way."""
    for mod in mods if isinstance(mods, list) else []:
        name = mod.get("folder") if isinstance(mod, dict) else None
        if isinstance(name, str) and not name.startswith(("/", "~")):
            folder, _ = mod_folder(name, beside)
            if folder is not None:
                yield folder


def _add_file(path: Path, meant: Path, files: dict[str, ContextFile]) -> None:
    """Add a file; `meant` is where its links led when it was judged."""
    try:
        content = read_unlinked(meant, MAX_TEMPLATE_BYTES)
    except OSError as error:
        raise RecipeError(
            f"{path} is not sent: {error.strerror}",
            hint="copy it there, and name it by its absolute path",
        ) from error
    files[_place(path)] = ContextFile(_place(path), content)
