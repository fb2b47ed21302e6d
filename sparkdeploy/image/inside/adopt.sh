#!/bin/sh
# Finds the Python that has vLLM in an existing image and hands over to it.
set -eu
# The image's own PATH may name no folder of programs.
PATH="${PATH:-}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
here=${0%/*}
pythons=""
for python in /opt/venv/bin/python python3 python /opt/conda/bin/python /app/.venv/bin/python \
  /workspace/.venv/bin/python /usr/local/bin/python3 /usr/bin/python3; do
  command -v "$python" >/dev/null 2>&1 || continue
  pythons="$pythons $python"
  if "$python" -I -c 'import importlib.util as u; raise SystemExit(u.find_spec("vllm") is None)'; then
    exec "$python" -I "$here/adopt.py" "$@"
  fi
done
if [ -z "$pythons" ]; then
  echo "sparkdeploy-refused: there is no Python in it" >&2
else
  unread=""
  [ -z "${PYTHONPATH:-}" ] || unread="; its PYTHONPATH is not read"
  echo "sparkdeploy-refused: no Python in it has vLLM (looked at$pythons)$unread" >&2
fi
exit 1
