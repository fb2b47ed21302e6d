#!/usr/bin/env bash
# On the GPU machine, once the last part is here: join the parts in /tmp/parts into /tmp/site.
set -euo pipefail
mkdir -p /tmp/site
cat /tmp/parts/site.zst.* | LD_LIBRARY_PATH=/tmp/zstd /tmp/zstd/zstd -dc | tar -x -C /tmp/site
