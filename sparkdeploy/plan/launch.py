"""vLLM's command and environment on one node, and the choices that its log has to show.

The NCCL environment is that of NVIDIA's playbook for two Sparks and of the recipes that Spark
owners publish; docs/cluster.md names them.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkdeploy import yaml_text
from sparkdeploy.recipe import flags
from sparkdeploy.recipe.releases import variables_of
from sparkdeploy.recipe.schema import Subject  # noqa: TC001 - read from a label, it is checked

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from sparkdeploy.plan.steps import NodeRank, Topology
    from sparkdeploy.recipe.engine import Engine
    from sparkdeploy.recipe.load import Resolved
    from sparkdeploy.recipe.schema import LoraAdapter, Recipe, Speculative

CACHE_TARGET = "/cache"
WORKSPACE = "/workspace"
"""Where mods put what they bring (image/inside/apply_mod.py)."""
CHAT_TEMPLATE_TARGET = "/run/sparkdeploy/chat_template.jinja"
KEY_TARGET = "/run/sparkdeploy/key"
KEY_MIDDLEWARE = "sparkdeploy_vllm.key_middleware.RequireKey"
HOST_MIDDLEWARE = "sparkdeploy_vllm.host_middleware.RequireOwnHost"
"""Where no key is asked for, a web page must not reach the server by a name of its own."""
ORIGINS_FLAG = "--allowed-origins"
ORIGINS_FLAG_START = "--allowed-o"
"""The least of it that argparse takes for the whole."""
NO_ORIGINS = "[]"
"""vLLM 0.25 allows every web page by default, 0.32 none."""
MEDIA_FLAG = "--allowed-media-domains"
MEDIA_FLAG_START = "--allowed-med"
"""The least of it that argparse takes for the whole."""
NO_DOMAIN = "none.invalid"
"""No host can have this name. vLLM takes an empty list for all domains."""
RENDEZVOUS_TIMEOUT_S = 180
"""torch waits 600 s by default, and then says only that it gives up."""
RENDEZVOUS_FLAG = "--distributed-timeout-seconds"
DATA_PARALLEL_RPC_PORT = 13345
INTERFACE_VARIABLES = (
    "GLOO_SOCKET_IFNAME",
    "MN_IF_NAME",
    "NCCL_SOCKET_IFNAME",
    "OMPI_MCA_btl_tcp_if_include",
    "TP_SOCKET_IFNAME",
    "UCX_NET_DEVICES",
)
"""NCCL and gloo otherwise take the first interface they find: Wi-Fi, or Docker's bridge."""
SOCKETS_COST = "every sum between the nodes then takes several times as long"
SOCKETS_ALLOWED = "--set 'backends.warn_only=[transport]'"
"""The override with which a recipe puts up with NCCL's own choice of transport."""
RAY_OBJECT_STORE_BYTES = 2**30
RAY_JOIN_TIMEOUT_S = 180
RAY_HEAD = ("/opt/venv/bin/python", "-I", "-m", "sparkdeploy_vllm.ray_head")
RAY_WORKER = ("/opt/venv/bin/python", "-I", "-m", "sparkdeploy_vllm.ray_worker")


def bound_host(*, is_public: bool) -> str:
    """Return the address to bind. Host network, so loopback is the machine's own."""
    return "0.0.0.0" if is_public else "127.0.0.1"  # noqa: S104 - --public


def serve_argv(
    recipe: Recipe, model: str, companions: Sequence[str] = (), *, is_public: bool = False
) -> tuple[str, ...]:
    """Return `vllm serve ...`, each flag once; the models are paths inside the container."""
    argv = ["vllm", "serve", model]
    if not _names_flag(recipe, MEDIA_FLAG_START):
        # A server on the host's network reaches every service of the machine for its clients.
        argv.append(f"{MEDIA_FLAG}={NO_DOMAIN}")
    argv += ["--served-model-name", *recipe.model.served_names]
    argv += ["--host", bound_host(is_public=is_public), "--port", str(recipe.serve.port)]
    argv += [] if _names_flag(recipe, ORIGINS_FLAG_START) else [ORIGINS_FLAG, NO_ORIGINS]
    argv += ["--middleware", KEY_MIDDLEWARE if is_public else HOST_MIDDLEWARE]
    argv += (word for _, words in flags.field_arguments(recipe.serve) for word in words)
    if recipe.serve.speculative is not None:
        argv += ["--speculative-config", _speculative_json(recipe.serve.speculative, companions)]
    if recipe.serve.lora:
        argv += ["--enable-lora", "--lora-modules", *_adapters(recipe.serve.lora, companions)]
    if recipe.serve.chat_template is not None:
        argv += ["--chat-template", CHAT_TEMPLATE_TARGET]
    elif recipe.serve.chat_template_of_mod is not None and recipe.mods:
        argv += ["--chat-template", f"{WORKSPACE}/{recipe.serve.chat_template_of_mod}"]
    return (*argv, *recipe.serve.extra_args)


def serve_env(recipe: Recipe, engine: Engine) -> dict[str, str]:
    """Return the environment of the container; it never holds a secret."""
    by_family = variables_of(recipe.model.known_as, engine)
    env = environment()["every"] | environment()[engine.runs_on] | by_family | recipe.serve.env
    return dict(sorted(env.items()))


@functools.cache
def environment() -> Mapping[str, dict[str, str]]:
    content: dict[str, dict[str, str]] = yaml_text.load_file(
        Path(__file__).with_name("environment.yaml")
    )
    return content


def _names_flag(recipe: Recipe, start: str) -> bool:
    named = flags.given_flags(recipe.serve.extra_args)
    return any((given.flag or "").startswith(start) for given in named)


def _adapters(adapters: Sequence[LoraAdapter], companions: Sequence[str]) -> Iterator[str]:
    """Yield each adapter's name and folder; the folders stand last among the companions."""
    folders = companions[-len(adapters) :]
    for adapter, folder in zip(adapters, folders, strict=True):
        yield flags.compact_json({"name": adapter.name, "path": folder})


def _speculative_json(speculative: Speculative, companions: Sequence[str]) -> str:
    config: dict[str, Any] = {"method": speculative.method} if speculative.method else {}
    if speculative.model is not None:
        is_mounted = companions and not speculative.is_in_image
        config["model"] = companions[0] if is_mounted else speculative.model
    config["num_speculative_tokens"] = speculative.tokens
    return flags.compact_json(config | speculative.further)


def fabric_env(resolved: Resolved, topology: Topology, rank: NodeRank) -> dict[str, str]:
    """Return what a node's container must know of the fabric: its own address and interfaces."""
    if topology.is_alone:
        return {}
    env = {"VLLM_HOST_IP": rank.address, **environment()["several"]}
    env |= dict.fromkeys(INTERFACE_VARIABLES, rank.interface)
    if resolved.engine.runs_on == "cuda":
        env |= _nccl_env(resolved, topology, rank)
    if topology.backend == "ray":
        names = ("RAY_NODE_IP_ADDRESS", "RAY_OVERRIDE_NODE_IP_ADDRESS")
        env |= dict.fromkeys(names, rank.address) | environment()["ray"]
    return env


def rank_command(
    recipe: Recipe, topology: Topology, rank: NodeRank, serve: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the command of one rank; `serve` is that of a machine that serves alone."""
    if topology.is_alone:
        # One machine with several GPUs divides a model too.
        return (*serve, *_sizes(topology))
    if topology.backend == "ray":
        return _ray_command(recipe, topology, rank, serve)
    if topology.data_parallel > 1:
        return (*serve, *_data_parallel(recipe, topology, rank))
    rendezvous = (
        *_sizes(topology),
        *("--nnodes", str(len(topology.ranks))),
        *("--node-rank", str(rank.number), "--master-addr", topology.head.address),
        *("--master-port", str(topology.master_port)),
        *_rendezvous_timeout(recipe),
    )
    return (*serve, *rendezvous, *(() if rank.is_head else ("--headless",)))


def meeting_port(topology: Topology) -> int:
    if topology.backend == "ray":
        return topology.ray_port
    return DATA_PARALLEL_RPC_PORT if topology.data_parallel > 1 else topology.master_port


def _nccl_env(resolved: Resolved, topology: Topology, rank: NodeRank) -> dict[str, str]:
    env = dict(environment()["several_cuda"])
    if topology.backend == "ray":
        # Its workers have a file there, which NCCL would empty.
        del env["NCCL_DEBUG_FILE"]
    # What a recipe says goes before what follows from config.yaml.
    own = resolved.recipe.serve.env.items()
    choices = {name: value for name, value in own if name.startswith("NCCL_")}
    if rank.rdma:
        env |= {
            "NCCL_IB_HCA": ",".join(rank.rdma),
            "NCCL_IB_DISABLE": "0",
            "NCCL_CROSS_NIC": "1",
            "UCX_NET_DEVICES": ",".join(f"{device}:1" for device in rank.rdma),
        }
        if not (allows_sockets(resolved) or uses_sockets(choices)):
            # Without it NCCL falls back to TCP in silence: 12 tok/s where 30 are possible.
            env["NCCL_NET"] = "IB"
        if rank.gid_index is not None:
            env["NCCL_IB_GID_INDEX"] = str(rank.gid_index)
    else:
        env["NCCL_IB_DISABLE"] = "1"
    return env | choices


def _sizes(topology: Topology) -> tuple[str, ...]:
    """How a copy of the model is divided; vLLM needs no flag for a whole one."""
    tensor, pipeline, copies = (
        topology.tensor_parallel,
        topology.pipeline_parallel,
        topology.data_parallel,
    )
    words = ["--tensor-parallel-size", str(tensor)] if max(tensor, pipeline) > 1 else []
    words += ["--pipeline-parallel-size", str(pipeline)] if pipeline > 1 else []
    words += ["--data-parallel-size", str(copies)] if copies > 1 else []
    return tuple(words)


def _data_parallel(recipe: Recipe, topology: Topology, rank: NodeRank) -> tuple[str, ...]:
    """Whole replicas on each node; the head's API divides the requests among them."""
    replicas = topology.data_parallel // len(topology.ranks)
    shared = (
        *_sizes(topology),
        *("--data-parallel-size-local", str(replicas)),
        *("--data-parallel-address", topology.head.address),
        *("--data-parallel-rpc-port", str(DATA_PARALLEL_RPC_PORT)),
        *_rendezvous_timeout(recipe),
    )
    if rank.is_head:
        return shared
    return (*shared, "--data-parallel-start-rank", str(rank.number * replicas), "--headless")


def _ray_command(
    recipe: Recipe, topology: Topology, rank: NodeRank, serve: tuple[str, ...]
) -> tuple[str, ...]:
    if not rank.is_head:
        return (
            *(*RAY_WORKER, "--join-timeout-s", str(RAY_JOIN_TIMEOUT_S), "--"),
            *("ray", "start", "--block"),
            *("--address", f"{topology.head.address}:{topology.ray_port}"),
            *("--node-ip-address", rank.address),
            *("--num-cpus", "2", "--object-store-memory", str(RAY_OBJECT_STORE_BYTES)),
        )
    return (
        *RAY_HEAD,
        *("--address", rank.address, "--port", str(topology.ray_port)),
        *("--nodes", str(len(topology.ranks)), "--join-timeout-s", str(RAY_JOIN_TIMEOUT_S)),
        *("--object-store-bytes", str(RAY_OBJECT_STORE_BYTES)),
        *("--", *serve, *_sizes(topology)),
        *("--distributed-executor-backend", "ray", *_rendezvous_timeout(recipe)),
    )


def _rendezvous_timeout(recipe: Recipe) -> tuple[str, ...]:
    is_named = flags.last_given(recipe.serve.extra_args, RENDEZVOUS_FLAG) is not None
    return () if is_named else (RENDEZVOUS_FLAG, str(RENDEZVOUS_TIMEOUT_S))


@dataclass(frozen=True, slots=True)
class PlannedBackend:
    subject: Subject
    wanted: str
    warns_only: bool


def planned_backends(resolved: Resolved) -> tuple[PlannedBackend, ...]:
    """Return what is compared with the log; on a CPU engine only what a CPU build logs."""
    serve, backends = resolved.recipe.serve, resolved.recipe.backends
    drafts = serve.speculative
    wanted: dict[Subject, str | None] = {
        # Without a method vLLM tells it from the drafter.
        "speculation": f"{drafts.method or ''} {drafts.tokens}".strip() if drafts else "off",
        "kv_cache": serve.kv_cache_dtype if serve.kv_cache_dtype != "auto" else None,
    }
    if resolved.engine.runs_on != "cpu":
        wanted |= {
            "attention": serve.attention_backend,
            "moe": backends.moe,
            "linear": backends.linear,
            "graphs": "off" if serve.enforce_eager else backends.graphs,
        }
    return tuple(
        PlannedBackend(subject, value, subject in backends.warn_only)
        for subject, value in wanted.items()
        if value is not None
    )


def planned_transport(
    resolved: Resolved, env: Mapping[str, str], adapters: Sequence[str]
) -> tuple[PlannedBackend, ...]:
    """Return how NCCL is to reach the other nodes, and by which adapters; nothing for sockets."""
    if uses_sockets(env) or not (adapters or env.get("NCCL_IB_HCA")):
        return ()
    return (PlannedBackend("transport", over("IB", adapters), allows_sockets(resolved)),)


def over(network: str, names: Iterable[str]) -> str:
    """Return what a plan, and a log, say of a transport: `NET/IB over rocep1s0f1, roceP2p1s0f1`."""
    listed = ", ".join(names)
    return f"NET/{network}{' over ' if listed else ''}{listed}"


def uses_sockets(env: Mapping[str, str]) -> bool:
    return env.get("NCCL_IB_DISABLE") == "1" or env.get("NCCL_NET", "IB").upper() != "IB"


def allows_sockets(resolved: Resolved) -> bool:
    return "transport" in resolved.recipe.backends.warn_only
