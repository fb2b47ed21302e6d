"""The commands: where each is, so that it is loaded when it is named, and what it is for."""

from __future__ import annotations

from typing import NamedTuple


class CommandEntry(NamedTuple):
    """Where a command is, and what `--help` says of it without loading it."""

    module: str
    """Below sparkdeploy.cli."""
    name: str
    """A function, or `group` for a group of commands."""
    summary: str
    """The first line of its help, word for word."""
    stays_here: bool = False
    """Whether it is about this machine, also where Docker's is another one."""
    fits_here: bool = False
    """Whether `--fits` without a value means this machine."""


COMMANDS = {
    "list": CommandEntry(
        "recipes",
        "list_recipes",
        "List the recipes by model, and the engines; with --fits, how fast on another machine.",
        fits_here=True,
        stays_here=True,
    ),
    "fits": CommandEntry(
        "recipes",
        "fits",
        "Say whether recipes fit one machine at the same time; exit 1 where they may not.",
    ),
    "new": CommandEntry(
        "recipes",
        "new",
        "Write a recipe: for a model from its configuration, or to change another one by hand.",
        stays_here=True,
    ),
    "show": CommandEntry(
        "recipes",
        "show_recipe",
        "Show a recipe with everything it inherits, and where each value was written.",
    ),
    "plan": CommandEntry(
        "recipes",
        "plan_recipe",
        "Say what `up` would do, and do nothing; with --hardware, what would fit and how fast.",
    ),
    "up": CommandEntry(
        "deployments",
        "up",
        "Deploy a recipe: images, checkpoint, container, and the model's first answer.",
    ),
    "switch": CommandEntry(
        "deployments",
        "switch",
        "Serve another recipe where a deployment answers: the same port, key and aliases.",
    ),
    "status": CommandEntry(
        "deployments",
        "status",
        "Show the deployments of this machine; with --watch, what each does, once a second.",
    ),
    "logs": CommandEntry("deployments", "logs", "Show a deployment's log."),
    "ask": CommandEntry(
        "present", "ask", "Ask a deployment one question; the answer appears as it comes."
    ),
    "chat": CommandEntry("present", "chat", "Talk to a deployment; it remembers what was said."),
    "connect": CommandEntry(
        "present",
        "connect",
        "Print a client's own settings for a deployment; a key is named by its file.",
    ),
    "stop": CommandEntry(
        "present",
        "stop",
        "End a deployment's containers and leave them there, so that `start` brings them back.",
    ),
    "start": CommandEntry(
        "present",
        "start",
        "Start a stopped deployment again: the same containers, until the model's first answer.",
    ),
    "restart": CommandEntry(
        "present", "restart", "Stop a deployment, and start the same containers again."
    ),
    "down": CommandEntry(
        "deployments", "down", "Stop and remove a deployment; images, checkpoints and caches stay."
    ),
    "rollback": CommandEntry(
        "deployments",
        "rollback",
        "End a replacement under way or interrupted, or bring the deployment before this one back.",
    ),
    "diagnose": CommandEntry(
        "deployments",
        "diagnose",
        "Pack all that is known of a failure into one file for a bug report, secrets removed.",
    ),
    "doctor": CommandEntry(
        "recipes",
        "doctor",
        "Check this machine for a recipe: GPU, memory, Docker, folders, ports, network.",
    ),
    "setup": CommandEntry(
        "upkeep",
        "setup",
        "Look for all that this machine lacks; as root, install it after a question.",
        stays_here=True,
    ),
    "config": CommandEntry(
        "upkeep",
        "config",
        "Show every setting with its value and whether it comes from the environment or a file.",
        stays_here=True,
    ),
    "clean": CommandEntry(
        "upkeep",
        "clean",
        "Remove our own old images, crash folders, caches and ended checks, after showing them.",
    ),
    "rehearse": CommandEntry(
        "deployments",
        "rehearse",
        "Serve a recipe's miniature on this machine's CPU, and ask it what users will ask.",
    ),
    "recipe": CommandEntry("recipe_import", "group", "Recipes of others.", stays_here=True),
    "export": CommandEntry(
        "export",
        "group",
        "A deployment as a systemd unit or a Compose file, and what runs beside it.",
        stays_here=True,
    ),
    "checkpoint": CommandEntry(
        "checkpoint",
        "group",
        "Checkpoints: downloads, and what is made of them.",
    ),
    "image": CommandEntry("image", "group", "Engines and their images."),
    "bench": CommandEntry(
        "bench",
        "group",
        "Measure and compare what is served; `bench [NAME]` is short for `bench run [NAME]`.",
    ),
    "cluster": CommandEntry(
        "cluster",
        "group",
        "Two or more nodes: who they are, and whether they fit together.",
        stays_here=True,
    ),
}
