"""The rewritten checkpoint the field knows: FP8 under the original names, complete, for any stack.

Shard by shard, tensors in their old order: what is untouched is copied by the kernel, each BF16
weight that has an FP8 one is replaced by it, and its scales follow it.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from sparkdeploy import atomic_files
from sparkdeploy.checkpoint import contents, durable
from sparkdeploy.checkpoint.contents import CONFIG_FILE, INDEX_FILE, Located
from sparkdeploy.checkpoint.conversion import HYBRID_NOTE
from sparkdeploy.checkpoint.durable import Progress
from sparkdeploy.checkpoint.fp8 import OWN_SUFFIXES, SCALE_SUFFIX, WEIGHT_SUFFIX
from sparkdeploy.checkpoint.fp8_shard import Fp8Shard
from sparkdeploy.checkpoint.manifest import MANIFEST_FILE, Manifest, prepare, write_manifest
from sparkdeploy.checkpoint.safetensors import Header, TensorInfo, header_bytes, placed, read_header
from sparkdeploy.checkpoint.source import CheckpointSource, source_identity
from sparkdeploy.errors import CheckpointError
from sparkdeploy.stored_json import open_regular

STANDALONE_VERSION = 3
_REWRITTEN = frozenset({CONFIG_FILE, INDEX_FILE, MANIFEST_FILE})
_Run = tuple[Path, int, int]
"""A file, and where a part of it begins and ends."""


def build_standalone(
    source: CheckpointSource,
    shard: Fp8Shard,
    out: Path,
    *,
    overwrite: bool,
    on_progress: Progress,
) -> Manifest:
    """Write the complete checkpoint to `out`, in the place of another one only when told so."""
    inputs = [STANDALONE_VERSION, source_identity(source), shard.origin, dict(shard.digests)]
    fingerprint = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
    out = out.absolute()

    def make(staging: Path) -> Manifest:
        if (out / MANIFEST_FILE).is_file() and not overwrite:
            raise CheckpointError(
                f"{out} holds another checkpoint.", hint="name a new folder, or pass --overwrite"
            )
        hashes = _write_shards(source, shard, staging, on_progress)
        _copy_others(source, staging)
        return _write_last(source, shard, staging, hashes, fingerprint)

    return prepare(out, fingerprint, make)


def _write_shards(
    source: CheckpointSource, shard: Fp8Shard, staging: Path, on_progress: Progress
) -> dict[str, str]:
    """Write every file of weights, and return their hashes."""
    tensors = contents.read_tensors(source.files_dir)
    fp8 = read_header(shard.path)
    _check_before(source, tensors, fp8)
    files = sorted({located.file for located in tensors.values()})
    sizes = {name: (source.files_dir / name).stat().st_size for name in files}
    hashes: dict[str, str] = {}
    done_bytes = 0
    for name in files:
        _copy_shard(source.files_dir / name, tensors, fp8, shard.path, staging / name)
        # Out of the page cache.
        hashes[name] = durable.content_hash(staging / name)
        done_bytes += sizes[name]
        on_progress(done_bytes, sum(sizes.values()))
    return hashes


def _check_before(source: CheckpointSource, tensors: Mapping[str, Located], fp8: Header) -> None:
    """Refuse before gigabytes are written what would be found at their end."""
    links = [str(name) for name in source.files() if (source.files_dir / name).is_dir()]
    if links:
        raise CheckpointError(
            f"{source.name}: {contents.summary(links)} leads to a folder; no link is copied.",
            hint="put the folder in the link's place, or remove the link",
        )
    own = OWN_SUFFIXES[WEIGHT_SUFFIX]
    stems = (name.removesuffix(own) for name in fp8.tensors if name.endswith(own))
    scales = [stem + SCALE_SUFFIX for stem in stems if stem + SCALE_SUFFIX in tensors]
    if scales:
        raise CheckpointError(
            f"{source.name} holds scales of FP8 already: {contents.summary(scales)}.",
            hint="name the checkpoint that has these weights at 16 bits",
        )


def _copy_shard(
    old: Path, tensors: Mapping[str, Located], fp8: Header, fp8_path: Path, new: Path
) -> None:
    header = read_header(old)
    # Of a tensor that stands in two files, the one that the index names.
    counted = {
        name: info for name, info in header.tensors.items() if tensors[name].file == old.name
    }
    infos, runs = _new_layout(replace(header, tensors=counted), old, fp8, fp8_path)
    with atomic_files.open_new(new) as target:
        beginning = header_bytes(infos, {**header.metadata, "format": "pt"})
        target.write(beginning)
        target.flush()
        for path, begin, end in runs:
            with open_regular(path) as content:
                durable.copy_range(content.fileno(), target.fileno(), begin, end - begin)
        durable.finish(target)
        size_bytes = os.fstat(target.fileno()).st_size
    if size_bytes != len(beginning) + infos[-1].end:
        raise CheckpointError(f"{new} does not hold what was written.")


def _new_layout(
    header: Header, path: Path, fp8: Header, fp8_path: Path
) -> tuple[list[TensorInfo], list[_Run]]:
    """The tensors of a rewritten shard with their new places, and where their bytes are now."""
    tensors: list[tuple[str, TensorInfo]] = []
    runs: list[_Run] = []
    for name, info in header.tensors.items():
        stem = name.removesuffix(WEIGHT_SUFFIX)
        weight = fp8.tensors.get(stem + OWN_SUFFIXES[WEIGHT_SUFFIX])
        if weight is None or stem == name:
            tensors.append((name, info))
            _add_run(runs, path, header.data_offset + info.begin, info.size_bytes)
            continue
        if weight.shape != info.shape:
            raise CheckpointError(f"{name} is {list(info.shape)}, its FP8 {list(weight.shape)}.")
        scales = fp8.tensors[stem + OWN_SUFFIXES[SCALE_SUFFIX]]
        tensors += [(name, weight), (stem + SCALE_SUFFIX, scales)]
        for part in (weight, scales):
            _add_run(runs, fp8_path, fp8.data_offset + part.begin, part.size_bytes)
    return placed((name, i.dtype, i.shape, i.size_bytes) for name, i in tensors), runs


def _add_run(runs: list[_Run], path: Path, begin: int, size_bytes: int) -> None:
    """Neighbours become one run, so that the kernel copies long stretches."""
    end = begin + size_bytes
    if runs and (runs[-1][0], runs[-1][2]) == (path, begin):
        begin = runs.pop()[1]
    runs.append((path, begin, end))


def _copy_others(source: CheckpointSource, staging: Path) -> None:
    for relative in source.files():
        if str(relative) not in _REWRITTEN and relative.suffix != ".safetensors":
            durable.make_folder((staging / relative).parent)
            durable.copy_file(source.files_dir / relative, staging / relative)


def _write_last(
    source: CheckpointSource,
    shard: Fp8Shard,
    staging: Path,
    hashes: Mapping[str, str],
    fingerprint: str,
) -> Manifest:
    replaced = sum(name.endswith(OWN_SUFFIXES[WEIGHT_SUFFIX]) for name in shard.digests)
    config = contents.read_config(source.files_dir)
    config[HYBRID_NOTE] = f"{replaced} shared-expert weights in FP8, from {shard.origin}"
    durable.write_json(staging / CONFIG_FILE, config)
    tensors = contents.read_tensors(staging)
    durable.write_json(staging / INDEX_FILE, contents.index_content(tensors))
    stated = {
        "fingerprint": fingerprint,
        "conversion": {"fp8_mode": "standalone", "fp8_origin": shard.origin},
        "fp8_layer_count": replaced,
        "mtp_tensor_count": sum(name.startswith("mtp.") for name in tensors),
    }
    manifest = write_manifest(staging, source, hashes, stated)
    durable.sync_folder(staging)
    return manifest
