"""Every error a user can see, with its exit code."""

from collections.abc import Sequence
from pathlib import Path


class Mistakes(str):
    """The detail of an error where each line has to be read, and no log of which the end tells."""

    __slots__ = ()


class SparkdeployError(Exception):
    """An expected failure: what happened to which thing, how to fix it, and long output if any.

    `detail` holds text such as a log tail; it is shown beneath the message, never inside it.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None, detail: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.detail = detail

    def __str__(self) -> str:
        # What comes to be known later, such as what became of the old one, joins the message.
        return self.message


def joined(errors: Sequence[SparkdeployError], what: str) -> SparkdeployError:
    """Return the only error, or one of the first's kind that shows all of them beneath `what`."""
    first = errors[0]
    if len(errors) == 1:
        return first
    lines = [it.message + (f"\n    fix: {it.hint}" if it.hint else "") for it in errors]
    whole = type(first).__new__(type(first))
    SparkdeployError.__init__(whole, what, detail=Mistakes("\n".join(lines)))
    return whole


class UsageError(SparkdeployError):
    exit_code = 2  # the command line does not make sense


class RecipeError(SparkdeployError):
    exit_code = 3  # a recipe, an engine or the user's configuration is invalid

    @property
    def in_one_line(self) -> str:
        """The message and the first mistake."""
        return ": ".join((self.message, *(self.detail or "").splitlines()[:1]))


class UnknownRecipeError(RecipeError):
    """No recipe has the name that was typed."""

    name = ""


class NoRecipeError(RecipeError):
    """A file is something else: not a recipe with mistakes, but none at all."""


class ConsentNeededError(RecipeError):
    """A recipe from elsewhere sets what needs consent, which an empty file at `record` gives."""

    record: Path | None = None


class NodeError(SparkdeployError):
    exit_code = 4  # Docker, ssh, the GPU, a disk, a port or another preflight check says no


class BuildError(SparkdeployError):
    exit_code = 5  # an image did not build


class CheckpointError(SparkdeployError):
    exit_code = 6  # a checkpoint is missing, incomplete or not what the recipe expects


class UnhealthyError(SparkdeployError):
    exit_code = 7  # a container died, or never became healthy


class BenchError(SparkdeployError):
    exit_code = 8  # a benchmark failed, or fell below the recipe's floor


class ChangesPendingError(SparkdeployError):
    exit_code = 9  # `plan --check` found work to do
