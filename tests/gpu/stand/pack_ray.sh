#!/usr/bin/env bash
# Pack Ray for the same machine, in one part of its own: .gpu/ray.zst, to be unpacked there into
# /tmp/packed-ray. Its dashboard, its Java and C++ workers and its libraries for training are left out. Run in the repository's root; UV names the uv.
set -euo pipefail
UV=${UV:-uv}
WORK=${WORK:-/tmp/gpu}
TARGET=(--python-version 3.12 --python-platform x86_64-manylinux_2_35)

mkdir -p "$WORK" .gpu
rm -rf "$WORK/ray"
"$UV" pip install -q --target "$WORK/ray" "${TARGET[@]}" --no-deps ray==2.60.0 msgpack
(cd "$WORK/ray" && rm -rf bin ray/jars ray/cpp ray/rllib ray/tune ray/train ray/data ray/serve ray/dashboard/client)
find "$WORK/ray" -name tests -type d -prune -exec rm -rf {} +
tar --sort=name -C "$WORK/ray" -cf - . | zstd -T2 -15 -q -f -o .gpu/ray.zst
ls -l .gpu/ray.zst
