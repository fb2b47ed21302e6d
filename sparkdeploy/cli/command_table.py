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
    """The first sentence of its help, word for word."""


# The five that a first day takes stand on top of `--help`, and each summary is whole there.
_TABLE = """
list       recipes       list_recipes List the recipes by model, and the engines.
plan       recipes       plan_recipe  Say what `up` would do, and do nothing.
up         deployments   up           Deploy a recipe, and wait for the model's first answer.
status     deployments   status       Show the deployments of this machine.
down       deployments   down         Stop and remove a deployment; images and checkpoints stay.
ask        present       ask          Ask a deployment one question; the answer appears as it comes.
chat       present       chat         Talk to a deployment; it remembers what was said.
connect    present       connect      Print a client's own settings for a deployment.
logs       deployments   logs         Show a deployment's log.
stop       present       stop         End a deployment's containers; `start` brings them back.
start      present       start        Start a stopped deployment, and wait for its first answer.
restart    present       restart      Stop a deployment, and start the same containers again.
switch     deployments   switch       Serve another recipe at the address of a deployment.
rollback   deployments   rollback     Go back to what a deployment was before its last replacement.
bench      bench         group        Measure and compare what is served.
rehearse   deployments   rehearse     Serve a recipe's miniature on this machine's CPU, and ask it.
show       recipes       show_recipe  Show a recipe with all that it inherits, and from where.
fits       recipes       fits         Say whether recipes fit one machine at the same time.
new        recipes       new          Write a recipe for a model, or one that changes another.
recipe     recipe_import group        Recipes of others: import, search, sources.
export     export        group        Files for systemd and Compose, and for what runs beside it.
checkpoint checkpoint    group        Checkpoints: downloads, and what is made of them.
image      image         group        Engines and their images.
cluster    cluster       group        Two or more nodes: who they are, and whether they fit.
doctor     recipes       doctor       Check this machine for a recipe: GPU, memory, Docker, network.
diagnose   deployments   diagnose     Pack a failure into a file for a bug report, without secrets.
setup      upkeep        setup        Name what this machine lacks; as root, install it.
config     upkeep        config       Show every setting, its value and where it comes from.
clean      upkeep        clean        Remove old images, crash folders and caches, after a question.
"""
COMMANDS = {
    name: CommandEntry(module, function, summary)
    for name, module, function, summary in (
        row.split(maxsplit=3) for row in _TABLE.splitlines()[1:]
    )
}
STAY_HERE = frozenset({"list", "new", "setup", "config", "recipe", "export", "cluster"})
"""Commands about this machine, also where Docker's is another one."""
