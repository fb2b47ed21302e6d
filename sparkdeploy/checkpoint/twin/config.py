"""The JSON files of a twin: the model's, its quantization's and its processors' configuration."""

from sparkdeploy.checkpoint.twin.shape import FULL_ATTENTION_INTERVAL, ExpertFormat, TwinShape
from sparkdeploy.checkpoint.twin.tensors import TEXT_PREFIX, VISION_PATCH, VISION_POSITIONS
from sparkdeploy.checkpoint.twin.tokenizer import END_OF_TEXT, END_OF_TURN, TwinTokenizer

_KEPT = {"bits": 16, "data_type": "float"}
_MAX_IMAGE_PIXELS = 256 * 256
"""64 tokens an image, so that one fits a context of a few hundred tokens."""


def model_config(shape: TwinShape, tokenizer: TwinTokenizer) -> dict[str, object]:
    """config.json of a Qwen3_5MoeForConditionalGeneration."""
    return {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "dtype": "bfloat16",
        "image_token_id": tokenizer.token_id("<|image_pad|>"),
        "video_token_id": tokenizer.token_id("<|video_pad|>"),
        "vision_start_token_id": tokenizer.token_id("<|vision_start|>"),
        "vision_end_token_id": tokenizer.token_id("<|vision_end|>"),
        "tie_word_embeddings": False,
        "text_config": _text_config(shape, tokenizer),
        "vision_config": _vision_config(shape),
        "quantization_config": quantization_config(shape),
    }


def quantization_config(shape: TwinShape) -> dict[str, object]:
    """AutoRound's INT4: symmetric, groups of 128, everything in `extra_config` left at 16 bits."""
    return {
        "quant_method": "auto-round",
        "packing_format": "auto_round:auto_gptq",
        "bits": 4,
        "data_type": "int",
        "group_size": 128,
        "sym": True,
        "block_name_to_quantize": f"{TEXT_PREFIX}.layers",
        "extra_config": {name: dict(_KEPT) for name in _kept_modules(shape)},
    }


def config_files(shape: TwinShape, tokenizer: TwinTokenizer) -> dict[str, object]:
    """Every JSON file but the tokenizer's, by its name; sampling settings are the model's own."""
    patches = {
        "patch_size": VISION_PATCH,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    return {
        "config.json": model_config(shape, tokenizer),
        "quantization_config.json": quantization_config(shape),
        "generation_config.json": {
            "do_sample": True,
            "eos_token_id": [tokenizer.token_id(END_OF_TURN), tokenizer.token_id(END_OF_TEXT)],
            "pad_token_id": tokenizer.token_id(END_OF_TEXT),
            "temperature": 0.6,
            "top_k": 20,
            "top_p": 0.95,
        },
        "preprocessor_config.json": {
            "image_processor_type": "Qwen2VLImageProcessorFast",
            "processor_class": "Qwen3VLProcessor",
            "size": {"longest_edge": _MAX_IMAGE_PIXELS, "shortest_edge": 1024},
            **patches,
        },
        "video_preprocessor_config.json": {
            "video_processor_type": "Qwen3VLVideoProcessor",
            "processor_class": "Qwen3VLProcessor",
            "size": {"longest_edge": 2 * _MAX_IMAGE_PIXELS, "shortest_edge": 1024},
            **patches,
        },
    }


def _text_config(shape: TwinShape, tokenizer: TwinTokenizer) -> dict[str, object]:
    return {
        "model_type": "qwen3_5_moe_text",
        "dtype": "bfloat16",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "bos_token_id": None,
        "eos_token_id": tokenizer.token_id(END_OF_TEXT),
        "full_attention_interval": FULL_ATTENTION_INTERVAL,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "layer_types": list(shape.layer_types),
        "linear_conv_kernel_dim": shape.conv_kernel,
        "linear_key_head_dim": shape.linear_head_dim,
        "linear_num_key_heads": shape.linear_key_heads,
        "linear_num_value_heads": shape.linear_value_heads,
        "linear_value_head_dim": shape.linear_head_dim,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 262144,
        "moe_intermediate_size": shape.expert_intermediate,
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "num_attention_heads": shape.attention_heads,
        "num_experts": shape.experts,
        "num_experts_per_tok": shape.experts_per_token,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "partial_rotary_factor": 0.25,
        "rms_norm_eps": 1e-06,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
            "partial_rotary_factor": 0.25,
            "rope_theta": 10000000,
            "rope_type": "default",
        },
        "router_aux_loss_coef": 0.001,
        "shared_expert_intermediate_size": shape.shared_expert_intermediate,
        "tie_word_embeddings": False,
        "use_cache": True,
        "vocab_size": shape.vocab,
    }


def _vision_config(shape: TwinShape) -> dict[str, object]:
    return {
        "model_type": "qwen3_5_moe",
        "deepstack_visual_indexes": [],
        "depth": shape.vision_depth,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": shape.vision_hidden,
        "in_channels": 3,
        "initializer_range": 0.02,
        "intermediate_size": 2 * shape.vision_hidden,
        "num_heads": shape.vision_heads,
        "num_position_embeddings": VISION_POSITIONS,
        "out_hidden_size": shape.hidden,
        "patch_size": VISION_PATCH,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }


def _kept_modules(shape: TwinShape) -> list[str]:
    """Linear layers left at 16 bits, by their names in the checkpoint."""
    names = ["lm_head", "mtp.fc"]
    names += [f"mtp.layers.0.self_attn.{name}_proj" for name in "qkvo"]
    names += _kept_in_mlp("mtp.layers.0.mlp")
    for layer, kind in enumerate(shape.layer_types):
        prefix = f"{TEXT_PREFIX}.layers.{layer}"
        names += _kept_in_mlp(f"{prefix}.mlp")
        if shape.expert_format is ExpertFormat.BF16:
            names.append(f"{prefix}.mlp.experts")
        if kind == "linear_attention" and not shape.in_proj_ab_is_packed:
            names += [f"{prefix}.linear_attn.in_proj_a", f"{prefix}.linear_attn.in_proj_b"]
    for block in range(shape.vision_depth):
        prefix = f"model.visual.blocks.{block}"
        names += [f"{prefix}.attn.qkv", f"{prefix}.attn.proj"]
        names += [f"{prefix}.mlp.linear_fc1", f"{prefix}.mlp.linear_fc2"]
    return [*names, "model.visual.merger.linear_fc1", "model.visual.merger.linear_fc2"]


def _kept_in_mlp(mlp: str) -> list[str]:
    shared = [f"{mlp}.shared_expert.{name}_proj" for name in ("gate", "up", "down")]
    return [f"{mlp}.gate", f"{mlp}.shared_expert_gate", *shared]
