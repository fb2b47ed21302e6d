"""The twin of an FP8 repository: the shared experts of a twin in blocks of 128 x 128."""

import bisect
import itertools
from pathlib import Path

from sparkdeploy.checkpoint import contents
from sparkdeploy.checkpoint.durable import write_json
from sparkdeploy.checkpoint.fp8 import BLOCK, SCALE_SUFFIX, WEIGHT_SUFFIX, decode_bf16, e4m3_values
from sparkdeploy.checkpoint.safetensors import TensorData, read_header, write_file
from sparkdeploy.checkpoint.tiny_model.values import bf16

FP8_MAX = 448.0
SHARDS = 2
_VALUES = e4m3_values()
_MIDPOINTS = [(low + high) / 2 for low, high in itertools.pairwise(_VALUES)]


def build_tiny_fp8_model(out: Path, twin: Path) -> None:
    """Make `out` an FP8 repository for the twin in `twin`: its shared experts, among filler."""
    if (out / contents.INDEX_FILE).is_file():
        return
    out.mkdir(parents=True, exist_ok=True)
    config = contents.read_config(twin)
    located = contents.read_tensors(twin)
    shards: list[dict[str, TensorData]] = [{} for _ in range(SHARDS)]
    sizes = contents.model_sizes(config)
    for number, (name, shape) in enumerate(contents.shared_expert_shapes(sizes)):
        path = twin / located[name].file
        with path.open("rb") as file:
            content = read_header(path).read(file, located[name].info)
        weight, scales = quantize(content, *shape)
        shard = shards[number % SHARDS]
        blocks = (-(-shape[0] // BLOCK), -(-shape[1] // BLOCK))
        shard[name] = ("F8_E4M3", shape, weight)
        shard[name.removesuffix(WEIGHT_SUFFIX) + SCALE_SUFFIX] = ("BF16", blocks, scales)
        shard[name.replace("shared_expert", "experts.0")] = ("F8_E4M3", (8, 16), bytes(128))
    for number, shard in enumerate(shards, start=1):
        write_file(out / f"model-{number:05}-of-{SHARDS:05}.safetensors", shard)
    quantization = {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}
    write_json(out / contents.CONFIG_FILE, {**config, "quantization_config": quantization})
    write_json(out / contents.INDEX_FILE, contents.index_content(contents.read_tensors(out)))


def quantize(content: bytes, rows: int, columns: int) -> tuple[bytes, bytes]:
    """BF16 values to e4m3 bytes and the BF16 scales of their blocks, both row by row."""
    weights = decode_bf16(content)
    codes = bytearray(rows * columns)
    scales = bytearray()
    for top in range(0, rows, BLOCK):
        for left in range(0, columns, BLOCK):
            places = [
                row * columns + column
                for row in range(top, min(top + BLOCK, rows))
                for column in range(left, min(left + BLOCK, columns))
            ]
            amax = max(abs(weights[place]) for place in places)
            encoded = bf16(max(amax, 1e-4) / FP8_MAX)
            scale = decode_bf16(encoded)[0]
            scales += encoded
            known = {value: encode_e4m3(value / scale) for value in {weights[p] for p in places}}
            for place in places:
                codes[place] = known[weights[place]]
    return bytes(codes), bytes(scales)


def encode_e4m3(value: float) -> int:
    """The code of the nearest value; beyond the largest it is the largest."""
    size = abs(value)
    code = bisect.bisect_left(_MIDPOINTS, size)
    if code < len(_MIDPOINTS) and size == _MIDPOINTS[code]:
        code += code & 1
    return code | (0x80 if value < 0 else 0)
