#!/usr/bin/env bash
# Record what NCCL says of its transport, on a machine with two GPUs and no RoCE adapter: the logs of
# tests/unit/server/logs/nccl. stand_in.c of tests/verbs plays the adapters. Needs root, gcc's product
# in STAND_IN, and libnccl.so.2 of another release in OTHER_NCCL (optional).
set -uo pipefail
OUT=${OUT:?}
STAND_IN=${STAND_IN:?}
PROGRAM=sparkdeploy/image/inside/all_reduce.py
DEVICES=(rocep1s0f1 roceP2p1s0f1)
PLANNED=(NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET NCCL_NVLS_ENABLE=0 NCCL_IGNORE_CPU_AFFINITY=1
  NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1)
RDMA=(NCCL_IB_HCA=rocep1s0f1,roceP2p1s0f1 NCCL_IB_DISABLE=0 NCCL_CROSS_NIC=1 NCCL_IB_GID_INDEX=3)
HOLDS_ADAPTERS=("LD_LIBRARY_PATH=$STAND_IN:${LD_LIBRARY_PATH:-}" STAND_IN_DEVICES=rocep1s0f1=10.77.0.11,roceP2p1s0f1=10.78.0.11)

interface=lo
address=127.0.0.1

# NCCL reads an adapter's PCI path and the kinds of its GIDs from the kernel.
make_class() {
  cp -a /sys/class/. "$1" 2>/dev/null
  mkdir -p "$1/infiniband"
  local device number=0 paths=(/sys/bus/pci/devices/*)
  for device in "${DEVICES[@]}"; do
    mkdir -p "$1/infiniband/$device/ports/1/gid_attrs/types"
    ln -sfn "$(readlink -f "${paths[number]}")" "$1/infiniband/$device/device"
    local index
    for index in 0 1 2 3; do
      if ((index % 2)); then echo "RoCE v2"; else echo "IB/RoCE v1"; fi \
        >"$1/infiniband/$device/ports/1/gid_attrs/types/$index"
    done
    number=$((number + 1))
  done
}

# record NAME NODES VARIABLE... : one file a rank.
record() {
  local name=$1 nodes=$2 rank
  shift 2
  for ((rank = 0; rank < nodes; rank++)); do
    env "${PLANNED[@]}" "NCCL_SOCKET_IFNAME=$interface" "CUDA_VISIBLE_DEVICES=$rank" "$@" \
      unshare --mount sh -c "mount --bind $class /sys/class; $hide; exec timeout 60 python3 -c \"\$(cat $PROGRAM)\" \
        $rank $nodes $address $port" >"$OUT/$release-$name-$rank.log" 2>&1 &
  done
  wait
  port=$((port + 1))
  echo "$release $name: $(grep -h sparkdeploy-all-reduce "$OUT/$release-$name-0.log" || tail -n 1 "$OUT/$release-$name-0.log" | cut -c1-160)"
}

hidden=$(mktemp)
hide=true
class=$(mktemp -d)
make_class "$class"
port=29600
for library in "" ${OTHER_NCCL:-}; do
  release=bundled
  own=()
  if [ -n "$library" ]; then
    release=other
    own=("LD_PRELOAD=$library")
  fi
  record socket 2 "${own[@]}" NCCL_IB_DISABLE=1
  hide="for library in /lib/*/libibverbs.so*; do mount --bind $hidden \$library; done"
  record missing 2 "${own[@]}" "${RDMA[@]}" NCCL_NET=IB
  record fallen-back 2 "${own[@]}" "${RDMA[@]}"
  hide=true
  record roce 1 "${own[@]}" "${RDMA[@]}" "${HOLDS_ADAPTERS[@]}" NCCL_NET=IB
  record denied 2 "${own[@]}" "${RDMA[@]}" "${HOLDS_ADAPTERS[@]}" NCCL_NET=IB STAND_IN_FAULT=denied
  record down 2 "${own[@]}" "${RDMA[@]}" "${HOLDS_ADAPTERS[@]}" NCCL_NET=IB STAND_IN_FAULT=down
  record modify 2 "${own[@]}" "${RDMA[@]}" "${HOLDS_ADAPTERS[@]}" NCCL_NET=IB STAND_IN_FAULT=modify
  record nvlink 2 "${own[@]}" NCCL_P2P_DISABLE=0 NCCL_SHM_DISABLE=0
done
python3 -c "import torch; print(torch.__version__, torch.cuda.nccl.version())"
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
