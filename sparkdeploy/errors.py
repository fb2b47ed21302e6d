"""Every error a user can see, with its exit code."""


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


class UsageError(SparkdeployError):
    """The command line does not make sense."""

    exit_code = 2


class RecipeError(SparkdeployError):
    """A recipe, an engine or the user's configuration is invalid."""

    exit_code = 3


class NodeError(SparkdeployError):
    """Docker, ssh, the GPU, a disk, a port or another preflight check says no."""

    exit_code = 4


class BuildError(SparkdeployError):
    """An image did not build."""

    exit_code = 5


class CheckpointError(SparkdeployError):
    """A checkpoint is missing, incomplete or not what the recipe expects."""

    exit_code = 6


class UnhealthyError(SparkdeployError):
    """A container died, or never became healthy."""

    exit_code = 7


class BenchError(SparkdeployError):
    """A benchmark failed, or fell below the recipe's floor."""

    exit_code = 8


class ChangesPendingError(SparkdeployError):
    """`plan --check` found work to do."""

    exit_code = 9
