"""Is a checkpoint whole and true to itself, by headers or by every byte; and what it holds."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from sparkdeploy.checkpoint import contents
from sparkdeploy.checkpoint.architecture import UnknownArchitectureError
from sparkdeploy.checkpoint.cache import BLOBS
from sparkdeploy.checkpoint.contents import INDEX_FILE, Located, ModelSizes, method_of, summary
from sparkdeploy.checkpoint.durable import Progress, content_hash
from sparkdeploy.checkpoint.expected_tensors import (
    expectation_problems,
    expected_tensors,
    missing_mtp,
)
from sparkdeploy.checkpoint.fp8 import OWN_SUFFIXES, check_fp8, expected_fp8, is_related
from sparkdeploy.checkpoint.manifest import MANIFEST_FILE, read_manifest
from sparkdeploy.checkpoint.repo_files import printable, shown
from sparkdeploy.checkpoint.safetensors import Header, TensorInfo
from sparkdeploy.checkpoint.source import LINKS_LIMIT, plain_files, readable, real_path
from sparkdeploy.errors import CheckpointError, Mistakes

CHANGED_HINT = "a download: `sparkdeploy checkpoint rm` and `pull` it; else make it again"
KNOWN_METHODS: Final = frozenset(
    {"fp8", "gptq", "auto-round", "awq", "compressed-tensors", "modelopt", "modelopt_fp4", "mxfp4"}
)
_BLOB = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_ORIGINAL_SUFFIX = {own: original for original, own in OWN_SUFFIXES.items()}


@dataclass(frozen=True, slots=True)
class Verified:
    """What was looked at. `hashed_bytes` is 0 unless every byte was read."""

    files: int
    tensors: int
    fp8_weights: int
    mtp_tensors: int
    hashed_files: int = 0
    hashed_bytes: int = 0
    unhashed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    """What is wrong and no engine reads."""
    not_known: tuple[str, ...] = ()
    """What could not be held against anything, and why."""


@readable()
@contents.collector_paused()
def verify_headers(folder: Path) -> Verified:
    """Hold index, headers and configuration against one another; raise with every problem."""
    plain_files(folder)
    config = contents.read_config(folder)
    headers = contents.read_headers(folder)
    tensors = contents.read_tensors(folder, headers)
    index = contents.read_index(folder)
    expected, not_known = _expected(config)
    problems = [
        *_index_problems(index, headers, tensors),
        *_family_problems(folder, config, tensors, expected),
        *_manifest_problems(folder, tensors),
    ]
    if problems:
        raise CheckpointError(
            f"{printable(folder)} is not a sound checkpoint: {problems[0]}",
            detail=Mistakes("\n".join(problems)),
        )
    weights = (".weight", ".fp8_weight")
    return Verified(
        files=len({item.file for item in tensors.values()}),
        tensors=len(tensors),
        fp8_weights=sum(
            item.info.dtype == "F8_E4M3" and name.endswith(weights)
            for name, item in tensors.items()
        ),
        mtp_tensors=sum(name.startswith("mtp.") for name in tensors),
        warnings=tuple(_index_warnings(index, tensors)),
        not_known=not_known,
    )


def _family_problems(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Located],
    expected: Mapping[str, tuple[int, ...]],
) -> Iterator[str]:
    infos = {name: item.info for name, item in tensors.items()}
    if is_qwen35_moe(config):
        sizes = contents.model_sizes(config)
        yield from _fp8_problems(folder, config, sizes, tensors)
        has_draft_layer = any(name.startswith("mtp.") for name in tensors)
        if has_draft_layer and (missing := missing_mtp(sizes, tensors)):
            yield f"{len(missing)} tensors of the draft layer are missing: {summary(missing)}"
    else:
        yield from _scale_problems(config, infos)
    yield from expectation_problems(expected, infos)


def _expected(
    config: Mapping[str, Any],
) -> tuple[Mapping[str, tuple[int, ...]], tuple[str, ...]]:
    not_known = []
    method = method_of(config)
    if not is_qwen35_moe(config) and method is not None and method not in KNOWN_METHODS:
        not_known.append(f"how {shown(method)} packs weights: scales were not looked for")
    expected = None
    try:
        expected = expected_tensors(config)
        if expected is None:
            not_known.append(
                "which tensors this family has: they were not held against config.json"
            )
    except UnknownArchitectureError as error:
        not_known.append(f"{error}: its tensors were not held against config.json")
    return expected or {}, tuple(not_known)


def _scale_problems(config: Mapping[str, Any], infos: Mapping[str, TensorInfo]) -> Iterator[str]:
    """Yield packed weights that have no scale, which engines read as garbage."""
    method = method_of(config)
    packed = {name: found for name, info in infos.items() if (found := _scales_of(name, info))}
    # Bytes may be anything where nothing says that they are packed.
    named = [name for name in packed if infos[name].dtype != "U8"]
    if method is None and named:
        yield (
            f"{len(named)} matrices are packed, {printable(min(named))} among them, and "
            "config.json has no quantization_config"
        )
    elif method in KNOWN_METHODS:
        for name, scales in packed.items():
            if infos.keys().isdisjoint(scales):
                yield f"{printable(name)}: its packed weight has no scale"


def _scales_of(name: str, info: TensorInfo) -> tuple[str, ...]:
    """Return the names of which one is a packed weight's scale; none for other tensors."""
    stem, _, last = name.rpartition(".")
    is_matrix_of_bytes = info.dtype == "U8" and len(info.shape) == 2
    if last == "qweight":
        return (f"{stem}.scales",)
    if last == "weight_packed":
        return (f"{stem}.weight_scale",)
    if last == "weight" and (info.dtype.startswith("F8_E") or is_matrix_of_bytes):
        return (f"{stem}.weight_scale_inv", f"{stem}.weight_scale")
    if last.endswith("_blocks") and info.dtype == "U8":
        return (name.removesuffix("_blocks") + "_scales",)
    return ()


def is_qwen35_moe(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is of the family that the twin and the conversions come from."""
    text = config.get("text_config", config)
    model_type = text.get("model_type") if isinstance(text, dict) else None
    named = config.get("architectures")
    return model_type in {"qwen3_5_moe", "qwen3_5_moe_text"} or (
        isinstance(named, list) and "Qwen3_5MoeForConditionalGeneration" in named
    )


def verify_bytes(folder: Path, stated: Mapping[str, str], on_progress: Progress) -> Verified:
    """Check headers, then every file whose hash `stated`, a blob's name or the manifest gives."""
    found = verify_headers(folder)
    manifest = read_manifest(folder)
    names = plain_files(folder)
    made = manifest.digests if manifest else {}
    blobs = {name: blob for name in names if (blob := _blob_name(folder / name)) is not None}
    hashes = {**made, **blobs, **stated}
    hashed = [name for name in names if name in hashes]
    total_bytes, done_bytes, wrong = sum((folder / name).stat().st_size for name in names), 0, []
    for name in hashed:
        done_bytes += (folder / name).stat().st_size
        is_git = len(hashes[name]) == 40
        if content_hash(folder / name, is_git=is_git) != hashes[name]:
            wrong.append(name)
        on_progress(done_bytes, total_bytes)
    lost = [name for name in hashes if not (folder / name).exists()]
    if wrong or lost:
        raise changed(folder, wrong, lost)
    unhashed = tuple(name for name in names if name not in hashes and name != MANIFEST_FILE)
    return replace(found, hashed_files=len(hashed), hashed_bytes=done_bytes, unhashed=unhashed)


def _blob_name(path: Path) -> str | None:
    """What the first link into a repository's blobs is called: sha256, or git's hash if small.

    A blob may be a link again, into the store, where files are called by another hash.
    """
    for _ in range(LINKS_LIMIT):
        if not path.is_symlink():
            return None
        target = path.parent / path.readlink()
        path = real_path(target.parent) / target.name
        if path.parent.name == BLOBS and _BLOB.fullmatch(path.name):
            return path.name
    return None


def changed(folder: Path, wrong: list[str], lost: list[str]) -> CheckpointError:
    said = [f"the content of {summary(wrong)} has changed"] if wrong else []
    said += [f"{summary(lost)} is gone"] if lost else []
    return CheckpointError(
        f"{printable(folder)}: {'; '.join(said)}.",
        detail="\n".join(map(printable, (*wrong, *lost))),
        hint=CHANGED_HINT,
    )


def _index_problems(
    index: Mapping[str, Any] | None, headers: Mapping[str, Header], tensors: Mapping[str, Located]
) -> Iterator[str]:
    if index is None:
        if len({item.file for item in tensors.values()}) > 1:
            yield f"there are several files and no {INDEX_FILE}"
        return
    places: Mapping[str, str] = index["weight_map"]
    elsewhere = [name for name, file in places.items() if tensors[name].file != file]
    if elsewhere:
        yield f"the index names another file for {summary(elsewhere)}"
    unlisted = [name for name in tensors if name not in places]
    if unlisted:
        yield f"the index does not list {summary(unlisted)}"
    # An engine that reads whole files would see them twice.
    if repeated := contents.repeated_tensors(headers, {*places.values()}):
        yield f"two indexed files hold {summary(repeated)}"
    if not isinstance(index.get("metadata", {}), dict):
        yield "the metadata of the index is not an object"


def _index_warnings(
    index: Mapping[str, Any] | None, tensors: Mapping[str, Located]
) -> Iterator[str]:
    stated = (index or {}).get("metadata", {}).get("total_size")
    total = sum(item.info.size_bytes for item in tensors.values())
    if stated is not None and stated != total:
        yield f"the index states {shown(stated)} bytes of tensors, the files have {total}"


def _fp8_problems(
    folder: Path, config: Mapping[str, Any], sizes: ModelSizes, tensors: Mapping[str, Located]
) -> Iterator[str]:
    block = _object_of(_object_of(config, "quantization_config"), "spark_hybrid")
    mode = _object_of(block, "fp8").get("mode")
    own: dict[str, TensorInfo] = {}
    original: dict[str, TensorInfo] = {}
    for name, item in tensors.items():
        stem, dot, last = name.rpartition(".")
        if dot + last in _ORIGINAL_SUFFIX:
            own[stem + _ORIGINAL_SUFFIX[dot + last]] = item.info
        elif is_related(name):
            original[name] = item.info
    is_rewritten = mode == "finished" or any(info.dtype == "F8_E4M3" for info in original.values())
    if mode != "prebuilt" and own:
        yield "it holds prebuilt FP8 tensors, and config.json does not ask for them"
    for is_wanted, found in ((mode == "prebuilt", own), (is_rewritten, original)):
        try:
            if is_wanted:
                check_fp8(str(folder), expected_fp8(sizes), found)
        except CheckpointError as error:
            yield from (error.detail or error.message).splitlines()


def _object_of(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    part = config.get(key)
    if part is None:
        return {}
    if not isinstance(part, dict):
        raise CheckpointError(f"config.json: {key} is not an object.")
    return part


def _manifest_problems(folder: Path, tensors: Mapping[str, Located]) -> Iterator[str]:
    if not (folder / MANIFEST_FILE).exists():
        return
    manifest = read_manifest(folder)
    if manifest is None:
        yield f"{MANIFEST_FILE} is not whole"
        return
    mtp = sum(name.startswith("mtp.") for name in tensors)
    if manifest.mtp_tensor_count != mtp:
        yield f"{mtp} MTP tensors, {MANIFEST_FILE} says {manifest.mtp_tensor_count}"
    lost = [name for name in manifest.digests if not (folder / name).is_file()]
    if lost:
        yield f"{summary(lost)} of {MANIFEST_FILE} is not there"
