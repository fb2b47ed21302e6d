#!/bin/sh
# A mod that does all that may be noted of one; apply_mod.py starts it in a small image.
set -e
[ "$WORKSPACE_DIR" = /workspace ]
[ "$(command -v python3)" = /opt/sparkdeploy/bin/python3 ]
[ -L /usr/local/lib/python3.12/dist-packages ]
python3 -c 'import sys; sys.exit(not sys.dont_write_bytecode)'
echo other > /v/written
chmod 700 /v/written
rm /v/gone
ln -sfn written /v/link
ln -s /v /v/folder
touch /v/new /v/new.pyc /v/kept.pyc /tmp/passing /dev/shm/passing /etc/hosts
sleep 600 &
