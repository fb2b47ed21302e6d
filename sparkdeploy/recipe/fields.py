"""Kinds of values in a recipe, each with what it may not hold."""

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from sparkdeploy.about import about
from sparkdeploy.recipe.image_name import image_name


@dataclass(frozen=True, slots=True)
class _AlsoText:
    """A number that may be written as text too: an editor has to know, the reader knows."""

    pattern: str

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        number = handler(schema)
        return {**number, "type": [number["type"], "string"], "pattern": self.pattern}


@dataclass(frozen=True, slots=True)
class _AlsoFalse:
    """YAML 1.1 reads a bare `off` as false; editors may do so too."""

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"anyOf": [handler(schema), {"const": False}]}


T = TypeVar("T")


def _off_of_false(value: Any) -> Any:  # noqa: ANN401 - YAML content
    return "off" if value is False else value


FormatVersion = Annotated[
    Literal[1], Field(alias="schema"), about("The version of this format.", 1)
]
Port = Annotated[int, Field(ge=1024, le=65535)]
"""Below 1024 a container without capabilities may not listen."""
PositiveInt = Annotated[int, Field(ge=1)]


def _no_truth(value: Any) -> Any:  # noqa: ANN401 - YAML content
    """Python takes `true` for 1."""
    if isinstance(value, bool):
        raise ValueError("Input should be a number")  # noqa: TRY004 - pydantic's way to say it
    return value


Decimal = Annotated[
    float,
    Field(strict=False),
    BeforeValidator(_no_truth),
    _AlsoText(r"^\s*[+-]?([0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)([eE][+-]?[0-9]+)?\s*$"),
]
"""Whole numbers too, and `1e3`, which YAML 1.1 takes for text."""
Fraction = Annotated[Decimal, Field(gt=0, le=1)]
OrBareOff = Annotated[T, BeforeValidator(_off_of_false), _AlsoFalse()]
"""Choices of which one is `off`, with or without quotes."""
MAX_PATH_BYTES = 2048
NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,62}$"
ImageReference = Annotated[str, Field(max_length=512), AfterValidator(image_name)]
"""By digest, by local id, or by a tag, which `up` pins to a digest."""


def _without_control(text: str) -> str:
    """Refuse what would move a terminal's cursor, end a line or end a C string."""
    if not text.isprintable():
        raise ValueError("control characters have no place here")
    return text


Printable = Annotated[str, AfterValidator(_without_control)]


def _fits_a_file_system(text: str) -> str:
    """Refuse what the system has no name for; asked about it, it fails instead of saying no."""
    if len(text.encode()) > MAX_PATH_BYTES or max(map(len, text.encode().split(b"/"))) > 255:
        raise ValueError("the path is too long")
    return text


HostPath = Annotated[Printable, AfterValidator(_fits_a_file_system)]
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:/+-]*$")]
"""A value that stands behind a flag: never a flag itself."""
REPOSITORY_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*/[A-Za-z0-9_][A-Za-z0-9_.-]*$"
Repository = Annotated[str, Field(pattern=REPOSITORY_PATTERN)]
Revision = Annotated[str, Field(pattern=r"^\w+([./-]\w+)*$")]
ServedName = Annotated[str, Field(pattern=r"^[\w./:][\w./:@-]*$")]
VllmRelease = Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$")]
Text = Annotated[str, Field(pattern=r"^[^\x00-\x08\x0b-\x1f\x7f]*$", max_length=65_536)]
"""Words over several lines, without what moves a terminal's cursor."""
_TOKENS = r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([kKmM]?)"
_TOKEN_UNITS = {"": 1, "k": 10**3, "m": 10**6, "K": 2**10, "M": 2**20}
"""As vLLM reads them: 64k is 64,000, and 64K is 65,536."""


def _tokens(value: Any) -> Any:  # noqa: ANN401 - YAML content
    """Read a number of tokens as vLLM does; what is none is left to the type."""
    match = re.fullmatch(_TOKENS, str(value))
    if not isinstance(value, str) or match is None:
        return value
    count = float(match[1]) * _TOKEN_UNITS[match[2]]
    return int(count) if count.is_integer() else value


Tokens = Annotated[PositiveInt, BeforeValidator(_tokens), _AlsoText(f"^{_TOKENS}$")]


SUBFOLDER = r"^[A-Za-z0-9_-][\w.-]*(/[A-Za-z0-9_-][\w.-]*)*$"
"""Folders within a repository: none leads out of it, or is hidden."""
WORKSPACE_TEMPLATE = r"^[A-Za-z0-9_-][\w.-]*(/[A-Za-z0-9_-][\w.-]*)*\.jinja$"


class Strict(BaseModel):
    """Frozen, and a misspelt key or a wrong type is an error rather than a silent default."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, populate_by_name=True, defer_build=True
    )
