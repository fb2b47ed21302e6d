#!/usr/bin/env bash
# On the GPU machine, once the last part is here: join the parts into SITE.
set -euo pipefail
PARTS=${PARTS:-/tmp/parts}
SITE=${SITE:-/tmp/site}
mkdir -p "$SITE"
cat "$PARTS"/site.zst.* | LD_LIBRARY_PATH=/tmp/zstd /tmp/zstd/zstd -dc | tar -x -C "$SITE"
