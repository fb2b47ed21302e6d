"""Numbers of a config.json that a stranger wrote: named, bounded, and never guessed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sparkdeploy.checkpoint.contents import EXPERTS_LIMIT, LAYERS_LIMIT, WIDTH_LIMIT
from sparkdeploy.checkpoint.repo_files import shown
from sparkdeploy.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

SIZE_LIMIT = WIDTH_LIMIT
"""Of any count or width in config.json."""
_LIMITS: Final = {
    "num_hidden_layers": LAYERS_LIMIT,
    "num_experts": EXPERTS_LIMIT,
    "num_local_experts": EXPERTS_LIMIT,
    "n_routed_experts": EXPERTS_LIMIT,
    "moe_num_experts": EXPERTS_LIMIT,
}
_TEXT_PARTS = ("text_config", "llm_config", "language_config")
"""Where models that also see or hear keep their language model; the first that is there."""


@dataclass(frozen=True, slots=True)
class ConfigSizes:
    """The language model's part of a config.json."""

    text: Mapping[str, Any]
    whole: Mapping[str, Any]

    def number(self, *names: str, least: int = 1) -> int:
        """Return the first of these keys that is there; raise CheckpointError without any."""
        found = self.optional(*names, least=least)
        if found is None:
            raise CheckpointError(f"config.json: {names[0]} is missing.")
        return found

    def optional(self, *names: str, least: int = 0) -> int | None:
        """Return the first of these keys that is there and no null.

        Raises CheckpointError for what is no number from `least` to a limit that no model has.
        """
        for name in names:
            value = self.text.get(name)
            if value is not None:
                return _checked(name, value, least)
        return None

    def listed(self, name: str, length: int) -> list[Any] | None:
        """Return a list with an entry for each layer; None where there is none."""
        found = self.text.get(name)
        if not isinstance(found, list):
            return None
        if len(found) < length:
            raise CheckpointError(
                f"config.json: {name} has {len(found)} entries for {length} layers."
            )
        return found[:length]

    def says(self, name: str) -> bool:
        """Return whether a switch is on, in the language model's part or beside it."""
        return self.text.get(name, self.whole.get(name)) is True


def config_sizes(config: Mapping[str, Any]) -> ConfigSizes:
    """Find the language model's part; raise CheckpointError where it is no object."""
    # Qwen's Omni models have their language model one floor deeper.
    outer = config.get("thinker_config", config)
    if not isinstance(outer, dict):
        raise CheckpointError("config.json: thinker_config is not an object.")
    name = next((part for part in _TEXT_PARTS if outer.get(part) is not None), None)
    text = outer if name is None else outer[name]
    if not isinstance(text, dict):
        raise CheckpointError(f"config.json: {name} is not an object.")
    return ConfigSizes(text, config)


def _checked(name: str, value: object, least: int) -> int:
    limit = _LIMITS.get(name, SIZE_LIMIT)
    if type(value) is not int or not least <= value <= limit:
        raise CheckpointError(
            f"config.json: {name} is {shown(value)}, not a number from {least} to {limit}."
        )
    return value
