"""What each node's container is told, as a pure function of recipe and formation.

The environment follows field.md section 3 (the table of peers' settings, with its sources).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sparkdeploy import labels
from sparkdeploy.node.container import Ulimit
from sparkdeploy.plan import launch
from sparkdeploy.plan.container import GIB, Deployment, container_spec
from sparkdeploy.plan.launch import Exposure

if TYPE_CHECKING:
    from sparkdeploy.node.container import ContainerSpec
    from sparkdeploy.plan.container import HostFolders, Weights
    from sparkdeploy.plan.formation import Formation, Seat
    from sparkdeploy.recipe.load import Resolved
    from sparkdeploy.recipe.schema import Recipe

RENDEZVOUS_TIMEOUT_S = 180
"""torch waits 600 s by default: the field's "gives up after ten minutes" (vllm.md section G)."""
RENDEZVOUS_FLAG = "--distributed-timeout-seconds"
READY_TIMEOUT_S = 3600
RAY_OBJECT_STORE_BYTES = 2**30
RAY_JOIN_TIMEOUT_S = 180
RAY_HEAD = ("/opt/venv/bin/python", "-I", "-m", "sparkdeploy_vllm.ray_head")
RAY_WORKER = ("/opt/venv/bin/python", "-I", "-m", "sparkdeploy_vllm.ray_worker")
INFINIBAND = "/dev/infiniband"
UNLIMITED = -1


@dataclass(frozen=True, slots=True)
class Place:
    """What one node holds for its container: the weights and the folders at its own paths."""

    weights: Weights
    folders: HostFolders


def node_spec(
    resolved: Resolved,
    formation: Formation,
    seat: Seat,
    *,
    image: str,
    deployment: Deployment,
    place: Place,
) -> ContainerSpec:
    """Return the container of one node.

    It differs from the solo container in the command, the fabric's environment and, with RDMA,
    in /dev/infiniband and the right to lock memory. Only the head has an API, and a key.
    """
    here = deployment if seat.is_head else Deployment(deployment.name, Exposure.LOOPBACK)
    solo = container_spec(
        resolved, place.weights, image=image, deployment=here, folders=place.folders
    )
    serve = launch.serve_argv(resolved.recipe, place.weights.paths(), here.exposure)
    spec = replace(
        solo,
        command=(
            *_guard_options(resolved.recipe, here.exposure),
            "--",
            *_command(resolved.recipe, formation, seat, serve),
        ),
        env=dict(sorted({**solo.env, **fabric_env(resolved, formation, seat)}.items())),
        labels={**solo.labels, **_labels(formation, seat)},
    )
    if not seat.rdma or resolved.engine.runs_on == "cpu":
        return spec
    return replace(
        spec,
        devices=(INFINIBAND,),
        cap_add=("IPC_LOCK",),
        ulimits=(Ulimit("memlock", UNLIMITED),),
    )


def fabric_env(resolved: Resolved, formation: Formation, seat: Seat) -> dict[str, str]:
    """Return what a node's container must know of the fabric: its own address and interfaces."""
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


def _command(
    recipe: Recipe, formation: Formation, seat: Seat, serve: tuple[str, ...]
) -> tuple[str, ...]:
    size = len(formation.seats)
    if formation.backend == "native":
        rendezvous = (
            *("--tensor-parallel-size", str(size), "--nnodes", str(size)),
            *("--node-rank", str(seat.rank), "--master-addr", formation.head.address),
            *("--master-port", str(formation.master_port)),
            *_rendezvous_timeout(recipe),
        )
        return (*serve, *rendezvous, *(() if seat.is_head else ("--headless",)))
    if not seat.is_head:
        return _ray_worker(formation, seat)
    return (
        *RAY_HEAD,
        *("--address", seat.address, "--port", str(formation.ray_port)),
        *("--nodes", str(size), "--join-timeout-s", str(RAY_JOIN_TIMEOUT_S)),
        *("--object-store-bytes", str(RAY_OBJECT_STORE_BYTES)),
        *("--", *serve, "--tensor-parallel-size", str(size)),
        *("--distributed-executor-backend", "ray", *_rendezvous_timeout(recipe)),
    )


def _ray_worker(formation: Formation, seat: Seat) -> tuple[str, ...]:
    return (
        *(*RAY_WORKER, "--join-timeout-s", str(RAY_JOIN_TIMEOUT_S), "--"),
        *("ray", "start", "--block"),
        *("--address", f"{formation.head.address}:{formation.ray_port}"),
        *("--node-ip-address", seat.address),
        *("--num-cpus", "2", "--object-store-memory", str(RAY_OBJECT_STORE_BYTES)),
    )


def _rendezvous_timeout(recipe: Recipe) -> tuple[str, ...]:
    if any(item.split("=")[0] == RENDEZVOUS_FLAG for item in recipe.serve.extra_args):
        return ()
    return (RENDEZVOUS_FLAG, str(RENDEZVOUS_TIMEOUT_S))


def _guard_options(recipe: Recipe, exposure: Exposure) -> list[str]:
    """Return the guard's options; it restarts nothing: one rank alone cannot come back."""
    options = ["--memory-floor-bytes", str(int(recipe.limits.memory_floor_gib * GIB))]
    if exposure is Exposure.PUBLIC:
        options += ["--key-file", launch.KEY_TARGET]
    return options


def _labels(formation: Formation, seat: Seat) -> dict[str, str]:
    return {
        labels.NODES: ",".join(item.node for item in formation.seats),
        labels.RANK: str(seat.rank),
        labels.ROLE: "serving" if seat.is_head else "worker",
    }
