#!/bin/sh
# Runs mods one after the other in a small image, by apply_mod.py: sh -c THIS sh PROGRAM SCRIPT...
# A line each: exit code, error and note. What the mods left behind has lines of its own.
program=$1
shift
note=/opt/sparkdeploy/mods/fix.json
mkdir -p /workspace/mods/fix /v /tmp
for name in gone kept written; do printf %s "$name" >"/v/$name"; done
ln -s kept /v/link
for script; do
  printf %s "$script" >/workspace/mods/fix/run.sh
  rm -f "$note"
  error=$(python3 -I -c "$program" fix 2>&1 >/dev/null)
  printf '%s\t%s\t%s\n' "$?" "$error" "$(head -c 9999 "$note" 2>/dev/null)"
done
for path in /usr/local/lib/python3.12 /opt/sparkdeploy/bin/*; do
  [ ! -e "$path" ] || echo "left: $path"
done
for process in /proc/[1-9]*; do
  [ "$(head -c 5 "$process/cmdline" 2>/dev/null)" != sleep ] || echo "left: $process"
done
