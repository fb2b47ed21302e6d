"""Overlays: relative links to untouched files, beside an edited config.json and a true index."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sparkdeploy.checkpoint import contents, durable
from sparkdeploy.checkpoint.cache import require_links
from sparkdeploy.checkpoint.contents import CONFIG_FILE, INDEX_FILE, Located
from sparkdeploy.checkpoint.conversion import GROUP, PLAIN, Conversion, SourceFacts, check_source
from sparkdeploy.checkpoint.draft_vocabulary import OVERLAY_FILE, DraftVocabulary
from sparkdeploy.checkpoint.durable import remove_leftovers, staging_path
from sparkdeploy.checkpoint.fp8_shard import SHARD_FILE, Fp8Shard
from sparkdeploy.checkpoint.manifest import MANIFEST_FILE, Manifest, prepare, write_manifest
from sparkdeploy.checkpoint.safetensors import read_header
from sparkdeploy.checkpoint.source import CheckpointSource, source_identity
from sparkdeploy.errors import CheckpointError

OVERLAY_VERSION = 4
"""Counts up whenever the same source and conversion give another overlay."""

_WRITTEN = frozenset({CONFIG_FILE, INDEX_FILE, MANIFEST_FILE, OVERLAY_FILE})


def overlay_fingerprint(source: CheckpointSource, conversion: Conversion) -> str:
    """A sha256 in hex over everything that shapes the overlay; reads file status only."""
    inputs = {
        "version": OVERLAY_VERSION,
        "source": source_identity(source),
        "files": str(_place_in_mount(source)),
        "mount_name": source.mount_name,
        "conversion": asdict(conversion),
    }
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def build_overlay(
    source: CheckpointSource,
    conversion: Conversion,
    target: Path,
    shard: Fp8Shard | None = None,
    draft: DraftVocabulary | None = None,
) -> Manifest:
    """Make `target`, which is <data>/m/ck/NAME, an overlay of `source`; reuse it when it is one.

    `shard` holds the tensors of mode prebuilt, `draft` ranks the tokens of the draft head. Links
    are relative and lead to ../../hub/<mount_name>, in the container as well as here, where that is
    made a link to the source's root.
    """
    require_links(target.parent)
    fingerprint = overlay_fingerprint(source, conversion)
    hub = target.parent.parent / "hub"
    with durable.disk_errors(str(hub)):
        _link_source(source, hub)

    def make(staging: Path) -> Manifest:
        _check_extras(conversion, shard, draft)
        facts = check_source(source, conversion)
        _fill(source, conversion, facts, staging, shard, draft)
        stated = {
            "fingerprint": fingerprint,
            "conversion": asdict(conversion),
            "fp8_layer_count": facts.fp8_layer_count,
            "mtp_tensor_count": facts.mtp_tensor_count,
            "shared_int4_count": facts.shared_int4_count,
            "draft_layer": facts.draft_layer,
        }
        return write_manifest(staging, source, {}, stated)

    return prepare(target, fingerprint, make)


def overlay_config(facts: SourceFacts, conversion: Conversion) -> dict[str, Any]:
    """The source's config.json with its quantization handed to the plugin.

    An engine without the plugin does not know the method and refuses, instead of serving garbage.
    """
    config, quantization = facts.config, facts.quantization
    fp8: dict[str, Any] = {"mode": conversion.fp8_mode, "layers": conversion.fp8_layers}
    fp8 |= {"modules": list(facts.dense_modules)} if facts.dense_modules else {"block": [128, 128]}
    if conversion.fp8_kernel != "vllm":
        fp8["kernel"] = conversion.fp8_kernel
    spark_hybrid: dict[str, Any] = {
        "version": 1,
        "base_method": quantization.get("quant_method", PLAIN),
        "model_type": config.get("model_type", ""),
        "fp8": fp8 if conversion.fp8_mode != "off" else None,
        "lm_head": conversion.lm_head,
        "expected_fp8_layers": facts.fp8_layer_count,
    }
    if facts.draft_layer is not None:
        counts = asdict(facts.draft_layer)
        spark_hybrid["draft_layer"] = {"experts": "int4", "group": GROUP, "dense": "fp8", **counts}
    if facts.shared_int4_count:
        int4 = {"dtype": "int4", "group": GROUP, "int4_layers": facts.shared_int4_count}
        spark_hybrid["shared_experts"] = int4
    if conversion.routing != "vllm":
        spark_hybrid["routing"] = conversion.routing
    if conversion.draft_rows:
        draft = {"rows": conversion.draft_rows, "dtype": "int8", "file": OVERLAY_FILE}
        spark_hybrid["draft_lm_head"] = draft
    changed = {**quantization, "quant_method": "spark-hybrid", "spark_hybrid": spark_hybrid}
    return {**config, "quantization_config": changed}


def _check_extras(
    conversion: Conversion, shard: Fp8Shard | None, draft: DraftVocabulary | None
) -> None:
    origin = "" if shard is None else shard.origin
    if origin != conversion.fp8_origin:
        raise CheckpointError(
            f"FP8 tensors of {conversion.fp8_origin or 'nowhere'} were asked for, and those of "
            f"{origin or 'nowhere'} are here."
        )
    if (draft.origin if draft is not None else "") != conversion.draft_origin:
        raise CheckpointError("the draft vocabulary changed while the overlay was made")


def _place_in_mount(source: CheckpointSource) -> Path:
    return source.files_dir.relative_to(source.root)


def _link_source(source: CheckpointSource, hub: Path) -> None:
    """Make the links of overlays resolve on the host as they do in the container."""
    link = hub / source.mount_name
    hub.mkdir(parents=True, exist_ok=True)
    remove_leftovers(link)
    if link.is_symlink() and link.readlink() == source.root:
        return
    staged = staging_path(link)
    staged.symlink_to(source.root, target_is_directory=True)
    staged.replace(link)


def _fill(
    source: CheckpointSource,
    conversion: Conversion,
    facts: SourceFacts,
    staging: Path,
    shard: Fp8Shard | None,
    draft: DraftVocabulary | None,
) -> None:
    _link_files(source, staging)
    tensors = dict(facts.tensors)
    if shard is not None:
        durable.link_or_copy(shard.path, staging / SHARD_FILE)
        added = read_header(staging / SHARD_FILE).tensors
        tensors |= {name: Located(SHARD_FILE, info) for name, info in added.items()}
    durable.write_json(staging / CONFIG_FILE, overlay_config(facts, conversion))
    if draft is not None:
        tokens = {"tokens": draft.first(conversion.draft_rows)}
        durable.write_text(staging / OVERLAY_FILE, json.dumps(tokens) + "\n")
    durable.write_json(staging / INDEX_FILE, contents.index_content(tensors))
    if dict(contents.read_tensors(staging)) != tensors:
        raise CheckpointError(f"{source.name} changed while its overlay was made.")


def _link_files(source: CheckpointSource, staging: Path) -> None:
    in_mount = Path("hub") / source.mount_name / _place_in_mount(source)
    for relative in source.files():
        if str(relative) in _WRITTEN:
            continue
        link = staging / relative
        for folder in reversed(relative.parents[:-1]):
            durable.make_folder(staging / folder)
        # Up from the link's folder to the overlay, and from there over ck/ to m/.
        link.symlink_to(Path(*[".."] * (len(relative.parts) + 1)) / in_mount / relative)
        if not link.samefile(source.files_dir / relative):
            raise CheckpointError(f"The link for {relative} does not lead to {source.name}'s file.")
