"""What vLLM is told when it loads its general plugins."""

from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.platforms import current_platform

from sparkdeploy_vllm import cpu_delta_net, cpu_int4_linear, layer_overrides, turboquant
from sparkdeploy_vllm.hybrid_config import SparkHybridConfig
from sparkdeploy_vllm.treatment import METHOD_NAME

_registered: list[str] = []


def register_all() -> None:
    """Register every hook once per process; a hook that does not fit this vLLM raises."""
    if METHOD_NAME in _registered:
        return
    register_quantization_config(METHOD_NAME)(SparkHybridConfig)
    layer_overrides.register()
    turboquant.register()
    if current_platform.is_cpu():
        cpu_delta_net.register()
        cpu_int4_linear.register()
    _registered.append(METHOD_NAME)
