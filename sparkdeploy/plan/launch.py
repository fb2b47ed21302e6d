"""vLLM's argument list and environment, as a pure function of the recipe."""

from __future__ import annotations

import json
from enum import Enum
from typing import TYPE_CHECKING, Any

from sparkdeploy.recipe import flags

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.recipe.schema import Engine, Recipe, Speculative

CACHE_TARGET = "/cache"
CHAT_TEMPLATE_TARGET = "/run/sparkdeploy/chat_template.jinja"
KEY_TARGET = "/run/sparkdeploy/key"
KEY_MIDDLEWARE = "sparkdeploy_vllm.key_middleware.RequireKey"
MEDIA_FLAG = "--allowed-media-domains"
MEDIA_FLAG_START = "--allowed-med"
"""The least of it that argparse takes for the whole."""
NO_DOMAIN = "none.invalid"
"""No host can have this name. vLLM takes an empty list for all domains."""
CUDA_CACHE_BYTES = 4 * 2**30
ENV = {
    # Without HOME torch.compile writes to /.cache; a uid without passwd entry needs USER.
    "HOME": CACHE_TARGET,
    "USER": "sparkdeploy",
    "XDG_CACHE_HOME": f"{CACHE_TARGET}/xdg",
    "XDG_CONFIG_HOME": f"{CACHE_TARGET}/config",
    "VLLM_CACHE_ROOT": f"{CACHE_TARGET}/vllm",
    "TORCHINDUCTOR_CACHE_DIR": f"{CACHE_TARGET}/inductor",
    "TRITON_CACHE_DIR": f"{CACHE_TARGET}/triton",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    # vLLM looks at the first address only: a domain that is allowed could send it anywhere.
    "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",
    # On machines with two networks a solo run otherwise waits for a second node's socket.
    "VLLM_HOST_IP": "127.0.0.1",
    "NCCL_IB_DISABLE": "1",
}
CUDA_ENV = {
    "FLASHINFER_WORKSPACE_BASE": CACHE_TARGET,
    "CUDA_CACHE_PATH": f"{CACHE_TARGET}/cuda",
    # FlashAttention-2 is compiled by the driver at first use and must stay in its cache.
    "CUDA_CACHE_MAXSIZE": str(CUDA_CACHE_BYTES),
}
CPU_ENV = {"VLLM_CPU_KVCACHE_SPACE": "1"}
"""In GiB."""


class Exposure(Enum):
    LOOPBACK = "loopback"
    PUBLIC = "public"

    @property
    def host(self) -> str:
        """Return the address to bind. Host network, so loopback is the machine's own."""
        return "127.0.0.1" if self is Exposure.LOOPBACK else "0.0.0.0"  # noqa: S104 - --public


def serve_argv(
    recipe: Recipe, model: str, exposure: Exposure, drafter: str | None = None
) -> tuple[str, ...]:
    """Return `vllm serve ...` for one node, each flag once, in a stable order.

    `model` and `drafter` are paths inside the container.
    """
    argv = ["vllm", "serve", model, *_media_arguments(recipe)]
    argv += ["--served-model-name", recipe.model.served_name]
    argv += ["--host", exposure.host, "--port", str(recipe.serve.port)]
    if exposure is Exposure.PUBLIC:
        argv += ["--middleware", KEY_MIDDLEWARE]
    argv += _flag_arguments(recipe)
    if recipe.serve.speculative is not None:
        argv += ["--speculative-config", _speculative_json(recipe.serve.speculative, drafter)]
    if recipe.serve.chat_template is not None:
        argv += ["--chat-template", CHAT_TEMPLATE_TARGET]
    return (*argv, *recipe.serve.extra_args)


def serve_env(recipe: Recipe, engine: Engine) -> dict[str, str]:
    """Return the environment of the container; it never holds a secret."""
    by_machine = CPU_ENV if engine.runs_on == "cpu" else CUDA_ENV
    return dict(sorted({**ENV, **by_machine, **recipe.serve.env}.items()))


def _media_arguments(recipe: Recipe) -> tuple[str, ...]:
    """Let no client make the server fetch what it may reach itself: on a host's own network that
    is every service of the machine. The recipe's own list takes the place of ours.
    """
    named = (flags.flag_of(argument) for argument in recipe.serve.extra_args)
    if any(flag.startswith(MEDIA_FLAG_START) for flag in named if flag is not None):
        return ()
    return (f"{MEDIA_FLAG}={NO_DOMAIN}",)


def _flag_arguments(recipe: Recipe) -> Iterator[str]:
    serve = recipe.serve
    for field, flag in flags.VALUE_FLAGS.items():
        value = getattr(serve, field)
        if value is not None and (field, value) != ("kv_cache_dtype", "auto"):
            yield from (flag, f"{value:g}" if isinstance(value, float) else str(value))
    for field, name in flags.SWITCH_FLAGS.items():
        value = getattr(serve, field)
        if value is not None:
            yield f"--{name}" if value else f"--no-{name}"
    for field, flag in flags.JSON_FLAGS.items():
        value = getattr(serve, field)
        if value is not None:
            yield from (flag, _compact(value))


def _speculative_json(speculative: Speculative, drafter: str | None) -> str:
    config: dict[str, Any] = {"method": speculative.method}
    if speculative.model is not None:
        config["model"] = drafter or speculative.model
    config["num_speculative_tokens"] = speculative.tokens
    return _compact(config)


def _compact(value: Any) -> str:  # noqa: ANN401 - any JSON value
    return json.dumps(value, separators=(",", ":"))
