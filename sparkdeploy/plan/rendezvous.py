"""Flags and environment by which the containers of several nodes find each other. Pure.

The NCCL environment is that of NVIDIA's playbook for two Sparks and of the recipes that Spark
owners publish; docs/cluster.md names them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparkdeploy.plan.formation import Formation, Seat
    from sparkdeploy.recipe.load import Resolved
    from sparkdeploy.recipe.schema import Recipe

RENDEZVOUS_TIMEOUT_S = 180
"""torch waits 600 s by default, and then says only that it gives up."""
RENDEZVOUS_FLAG = "--distributed-timeout-seconds"
DATA_PARALLEL_RPC_PORT = 13345
READY_TIMEOUT_S = 3600
RAY_OBJECT_STORE_BYTES = 2**30
RAY_JOIN_TIMEOUT_S = 180
RAY_HEAD = ("/opt/venv/bin/python", "-I", "-m", "sparkdeploy_vllm.ray_head")
RAY_WORKER = ("/opt/venv/bin/python", "-I", "-m", "sparkdeploy_vllm.ray_worker")


def fabric_env(resolved: Resolved, formation: Formation, seat: Seat) -> dict[str, str]:
    """Return what a node's container must know of the fabric: its own address and interfaces."""
    if formation.is_alone:
        return {}
    env = {"VLLM_HOST_IP": seat.address, "VLLM_ENGINE_READY_TIMEOUT_S": str(READY_TIMEOUT_S)}
    # NCCL and gloo otherwise take the first interface they find: Wi-Fi, or Docker's bridge.
    for name in (
        "GLOO_SOCKET_IFNAME",
        "MN_IF_NAME",
        "NCCL_SOCKET_IFNAME",
        "OMPI_MCA_btl_tcp_if_include",
        "TP_SOCKET_IFNAME",
        "UCX_NET_DEVICES",
    ):
        env[name] = seat.interface
    if resolved.engine.runs_on == "cuda":
        env |= _nccl_env(seat)
    if formation.backend == "ray":
        env |= _ray_env(seat)
    return env


def rank_command(
    recipe: Recipe, formation: Formation, seat: Seat, serve: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the command of one rank; `serve` is that of a machine that serves alone."""
    if formation.is_alone:
        # One machine with several GPUs divides a model too.
        return (*serve, *_sizes(formation), *_copies(formation))
    if formation.backend == "ray":
        return _ray_command(recipe, formation, seat, serve)
    if formation.data_parallel > 1:
        return (*serve, *_data_parallel(recipe, formation, seat))
    rendezvous = (
        *_sizes(formation),
        *("--nnodes", str(len(formation.seats))),
        *("--node-rank", str(seat.rank), "--master-addr", formation.head.address),
        *("--master-port", str(formation.master_port)),
        *_rendezvous_timeout(recipe),
    )
    return (*serve, *rendezvous, *(() if seat.is_head else ("--headless",)))


def meeting_port(formation: Formation) -> int:
    """Return the head's port where the nodes of one deployment find each other."""
    if formation.backend == "ray":
        return formation.ray_port
    return DATA_PARALLEL_RPC_PORT if formation.data_parallel > 1 else formation.master_port


def _nccl_env(seat: Seat) -> dict[str, str]:
    env = {
        "NCCL_IGNORE_CPU_AFFINITY": "1",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    }
    if not seat.rdma:
        return {**env, "NCCL_IB_DISABLE": "1"}
    env |= {
        "NCCL_IB_HCA": ",".join(seat.rdma),
        "NCCL_IB_DISABLE": "0",
        # Without it NCCL falls back to TCP in silence: 12 tok/s where 30 are possible.
        "NCCL_NET": "IB",
        "NCCL_CROSS_NIC": "1",
        "UCX_NET_DEVICES": ",".join(f"{device}:1" for device in seat.rdma),
    }
    if seat.gid_index is not None:
        env["NCCL_IB_GID_INDEX"] = str(seat.gid_index)
    return env


def _ray_env(seat: Seat) -> dict[str, str]:
    return {
        "RAY_NODE_IP_ADDRESS": seat.address,
        "RAY_OVERRIDE_NODE_IP_ADDRESS": seat.address,
        # It counts unified memory as the host's and kills workers that do nothing wrong.
        "RAY_memory_monitor_refresh_ms": "0",
        "RAY_num_prestart_python_workers": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def _sizes(formation: Formation) -> tuple[str, ...]:
    """How a copy of the model is divided; vLLM needs no flag for a whole one."""
    sizes = ("--tensor-parallel-size", str(formation.tensor_parallel))
    if formation.pipeline_parallel == 1:
        return sizes if formation.tensor_parallel > 1 else ()
    return (*sizes, "--pipeline-parallel-size", str(formation.pipeline_parallel))


def _copies(formation: Formation) -> tuple[str, ...]:
    copies = ("--data-parallel-size", str(formation.data_parallel))
    return copies if formation.data_parallel > 1 else ()


def _data_parallel(recipe: Recipe, formation: Formation, seat: Seat) -> tuple[str, ...]:
    """Whole replicas on each node; the head's API divides the requests among them."""
    replicas = formation.data_parallel // len(formation.seats)
    shared = (
        *_sizes(formation),
        *_copies(formation),
        *("--data-parallel-size-local", str(replicas)),
        *("--data-parallel-address", formation.head.address),
        *("--data-parallel-rpc-port", str(DATA_PARALLEL_RPC_PORT)),
        *_rendezvous_timeout(recipe),
    )
    if seat.is_head:
        return shared
    return (*shared, "--data-parallel-start-rank", str(seat.rank * replicas), "--headless")


def _ray_command(
    recipe: Recipe, formation: Formation, seat: Seat, serve: tuple[str, ...]
) -> tuple[str, ...]:
    if not seat.is_head:
        return (
            *(*RAY_WORKER, "--join-timeout-s", str(RAY_JOIN_TIMEOUT_S), "--"),
            *("ray", "start", "--block"),
            *("--address", f"{formation.head.address}:{formation.ray_port}"),
            *("--node-ip-address", seat.address),
            *("--num-cpus", "2", "--object-store-memory", str(RAY_OBJECT_STORE_BYTES)),
        )
    return (
        *RAY_HEAD,
        *("--address", seat.address, "--port", str(formation.ray_port)),
        *("--nodes", str(len(formation.seats)), "--join-timeout-s", str(RAY_JOIN_TIMEOUT_S)),
        *("--object-store-bytes", str(RAY_OBJECT_STORE_BYTES)),
        *("--", *serve, *_sizes(formation)),
        *("--distributed-executor-backend", "ray", *_rendezvous_timeout(recipe)),
    )


def _rendezvous_timeout(recipe: Recipe) -> tuple[str, ...]:
    if any(item.split("=")[0] == RENDEZVOUS_FLAG for item in recipe.serve.extra_args):
        return ()
    return (RENDEZVOUS_FLAG, str(RENDEZVOUS_TIMEOUT_S))
