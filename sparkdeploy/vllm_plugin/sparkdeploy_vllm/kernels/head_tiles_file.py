"""Tuned tiles as JSON in the cache folder: written whole, believed for what they were made for.

Standard library only. Nothing here is needed to serve: a file that is broken, foreign or old is
refused with a reason, and the caller goes on with the tiles that ship.
"""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from sparkdeploy_vllm.kernels.int8_head_configs import HeadTile

SCHEMA = 1
MOST_BYTES = 64 * 1024
"""A file of ours has 2 KB; what is larger is not ours and is not read."""
ROW_CLASSES = (8, 16, 32, 64, 128)
"""`rows` that a tile may have. The first is 8 for all cards: one request with speculation (3 rows)
and without (1 row) must share a tile, or the text could differ."""
MUST_HAVE_ROWS = 64
"""Up to here the weights are read once."""
VOCAB_STEPS = (64, 128)
HIDDEN_STEPS = (64, 128, 256)
WARPS = (2, 4, 8)
STAGES = (2, 3, 4)
WGMMA_WARPS = 4


class UnusableTilesError(ValueError):
    """Why a file with tuned tiles must not be used."""


@dataclass(frozen=True, slots=True)
class HeadKey:
    """What tuned tiles were made for; anything else may be slower, wrong, or not compile."""

    card: str
    capability: tuple[int, int]
    vocab: int
    """Rows of the matrix on one rank, padding included."""
    hidden: int
    kernel: str
    """Fingerprint of the kernels' source."""
    triton: str


@dataclass(frozen=True, slots=True)
class TunedTile:
    """A tile that won, and the milliseconds of it and of the tile that ships, at its `rows`."""

    tile: HeadTile
    ms: float
    shipped_ms: float


def kernel_fingerprint() -> str:
    return hashlib.sha256(Path(__file__).with_name("int8_head.py").read_bytes()).hexdigest()[:12]


def tuned_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of tuned tiles: below XDG_CACHE_HOME, which a container keeps."""
    cache = environment.get("XDG_CACHE_HOME") or "~/.cache"
    # Path.expanduser raises where a user has no home.
    return Path(os.path.expanduser(cache)) / "sparkdeploy" / "int8-head"  # noqa: PTH111


def tuned_path(key: HeadKey, folder: Path) -> Path:
    """Return the file of a card and a shape; one for a newer kernel takes its place."""
    card = re.sub(r"[^a-z0-9]+", "-", key.card.lower()).strip("-")
    major, minor = key.capability
    return folder / f"{card}-sm{major}{minor}-{key.vocab}x{key.hidden}.json"


def read_tuned(key: HeadKey, folder: Path) -> tuple[HeadTile, ...] | None:
    """Return None where there are none, and raise UnusableTilesError for a file that cannot be
    read, is broken or was made for another card, shape, kernel or Triton.
    """
    try:
        with tuned_path(key, folder).open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnusableTilesError(f"it cannot be read: {error.strerror}") from error
    if len(content) > MOST_BYTES:
        raise UnusableTilesError(f"it has more than {MOST_BYTES} bytes")
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UnusableTilesError(f"it is not JSON: {error}") from error
    return _checked(document, key)


def write_tuned(
    key: HeadKey, tuned: Sequence[TunedTile], made_with: Mapping[str, str], folder: Path
) -> Path:
    """A reader sees the old file or the new; UnusableTilesError for what it would refuse."""
    document = {
        "schema": SCHEMA,
        "key": asdict(key),
        "tiles": [
            {**asdict(won.tile), "ms": round(won.ms, 4), "shipped_ms": round(won.shipped_ms, 4)}
            for won in tuned
        ],
        "made_with": dict(made_with),
    }
    text = json.dumps(document, indent=1) + "\n"
    _checked(json.loads(text), key)
    path = tuned_path(key, folder)
    folder.mkdir(parents=True, exist_ok=True)
    _replace(path, text)
    return path


def tile_problem(tile: HeadTile, capability: tuple[int, int]) -> str:
    """Return why the kernels do not take a tile on such a card; empty when they do."""
    allowed = {
        "rows": ROW_CLASSES,
        "vocab": VOCAB_STEPS,
        "hidden": HIDDEN_STEPS,
        "warps": WARPS,
        "stages": STAGES,
        # The copy engine came with Hopper; what it does on later cards was never tried.
        "path": ("gathered", "streamed") if capability[0] == 9 else ("gathered",),
    }
    for name, values in allowed.items():
        if getattr(tile, name) not in values:
            return f"{name} is {getattr(tile, name)!r}, known are {', '.join(map(str, values))}"
    if tile.path == "streamed" and (tile.warps % WGMMA_WARPS or tile.rows < 16):
        return "the streamed path takes 16 rows or more and 4 or 8 warps"
    return ""


def _checked(document: object, key: HeadKey) -> tuple[HeadTile, ...]:
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise UnusableTilesError(f"it is not of schema {SCHEMA}")
    made_for = document.get("key")
    if not isinstance(made_for, dict):
        raise UnusableTilesError("it does not say what it was made for")
    for name, wanted in asdict(key).items():
        found = tuple(it) if isinstance(it := made_for.get(name), list) else it
        if found != wanted:
            raise UnusableTilesError(f"it was made for {name} {found!r}, here it is {wanted!r}")
    entries = document.get("tiles")
    if not isinstance(entries, list) or not entries:
        raise UnusableTilesError("it has no tiles")
    tiles = tuple(_tile(entry, key) for entry in entries)
    rows = [tile.rows for tile in tiles]
    if rows != sorted(set(rows)) or rows[0] != ROW_CLASSES[0] or rows[-1] < MUST_HAVE_ROWS:
        raise UnusableTilesError(
            f"its tiles have {rows} rows; they must ascend from {ROW_CLASSES[0]} "
            f"to {MUST_HAVE_ROWS} or more"
        )
    return tiles


def _tile(entry: object, key: HeadKey) -> HeadTile:
    names = [field.name for field in fields(HeadTile)]
    if not isinstance(entry, dict) or not set(names) <= set(entry):
        raise UnusableTilesError(f"a tile is {str(entry)[:80]!r}; it needs {', '.join(names)}")
    values = {name: entry[name] for name in names}
    # True counts as 1 and 8.0 as 8 where values are compared, but not where kernels are compiled.
    if any(type(value) is not (str if name == "path" else int) for name, value in values.items()):
        raise UnusableTilesError(f"a tile is {str(entry)[:80]!r}; its sizes must be whole numbers")
    tile = HeadTile(**values)
    if problem := tile_problem(tile, key.capability):
        raise UnusableTilesError(f"a tile's {problem}")
    return tile


def _replace(path: Path, text: str) -> None:
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, prefix=f".{path.name}.", encoding="utf-8", delete=False
    ) as file:
        partial = Path(file.name)
        try:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            partial.chmod(0o644)
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
