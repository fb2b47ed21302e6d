"""A vLLM in name only, for images of others."""

SITE = "/usr/lib/python3/dist-packages"


def with_vllm(version: str, torch_cuda: str | None) -> str:
    """Return the instruction that puts a vLLM in name only into an image."""
    info = f"{SITE}/vllm-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\\nName: vllm\\nVersion: {version}\\n"
    cuda = repr(torch_cuda).replace("'", '"')
    return (
        f"RUN mkdir -p {SITE}/vllm {SITE}/torch {info}"
        f" && touch {SITE}/vllm/__init__.py {SITE}/torch/__init__.py"
        f" && printf '{metadata}' > {info}/METADATA"
        f" && printf 'cuda: str = {cuda}\\n' > {SITE}/torch/version.py"
    )
