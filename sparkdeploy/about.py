"""What a field of a file means, beside the field; pages and editors read it."""

from typing import Any

from pydantic import Field, JsonValue

UNIT, FLAG, UNSET, CONSENT = "x-unit", "x-vllm", "x-unset", "x-consent"
"""Keys of a JSON schema, of ours alone."""


def about(
    meaning: str,
    example: JsonValue,
    *,
    unit: str = "",
    flag: str = "",
    unset: str = "",
    consent: str = "",
) -> Any:  # noqa: ANN401 - what pydantic's own Field returns
    """Return it for `Annotated`: what a value means, and one that somebody may write.

    `unit` is what a number counts, `flag` what of vLLM it becomes, and `unset` what happens where
    it is left out and has no default. `consent` is what it can do where a recipe from elsewhere
    sets it; without one nobody is asked.
    """
    keywords = {UNIT: unit, FLAG: flag, UNSET: unset, CONSENT: consent}
    extra: dict[str, JsonValue] = {key: value for key, value in keywords.items() if value}
    return Field(description=meaning, examples=[example], json_schema_extra=extra or None)
