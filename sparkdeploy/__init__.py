"""Deploy large language models with vLLM on NVIDIA DGX Spark."""

__version__ = "0.1.0"
