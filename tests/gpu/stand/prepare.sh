#!/usr/bin/env bash
# On the GPU machine: unpack the committed code, make the plugin's folders, and make both twins in
# the background (again only when how they are made has changed). PACKED is the folder that came.
set -euo pipefail
PACKED=${PACKED:-.gpu}
mkdir -p /tmp/code /tmp/m /tmp/zstd
rm -rf /tmp/code/sparkdeploy /tmp/code/tests /tmp/plugin /tmp/plugin-* /tmp/stand
tar -xf "$PACKED/code.tar" -C /tmp/code
cp "$PACKED"/zstd/* /tmp/zstd/
rm -rf /tmp/lite
cp -r "$PACKED/lite" /tmp/lite
cp -r /tmp/code/tests/gpu/stand /tmp/stand
for folder in /tmp/plugin /tmp/plugin-variant /tmp/plugin-dummy; do
  mkdir -p "$folder"
  cp -r /tmp/code/sparkdeploy/vllm_plugin/sparkdeploy_vllm "$folder"
  cp -r /tmp/code/sparkdeploy/vllm_plugin/dist-info "$folder/sparkdeploy_vllm-0.1.0.dist-info"
done
cp /tmp/stand/variants/*.py /tmp/plugin-variant/
cp /tmp/stand/margins/*.py /tmp/plugin-dummy/
sed -i 's/^sparkdeploy = .*/sparkdeploy = stand_margins:register/' \
  /tmp/plugin-dummy/*.dist-info/entry_points.txt
sed -i 's/^sparkdeploy = .*/sparkdeploy = stand_variants:register/' \
  /tmp/plugin-variant/*.dist-info/entry_points.txt
if ! cmp -s /tmp/stand/twins.py /tmp/m/twins.py; then
  cp /tmp/stand/twins.py /tmp/m/twins.py
  for twin in ${TWINS:-wide nervous}; do
    rm -rf "/tmp/m/twins/$twin"
    PYTHONPATH=/tmp/code:/tmp/lite setsid nohup python3 /tmp/m/twins.py "$twin" /tmp/m \
      > "/tmp/m/$twin.log" 2>&1 &
  done
fi
