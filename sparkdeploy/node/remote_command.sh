# shellcheck shell=sh disable=SC2012,SC2154
# Finds sparkdeploy on a node, and puts the files of a command there; ssh.py sends it.
PATH="$PATH:$HOME/.local/bin"
version="$(sparkdeploy --version 2>/dev/null </dev/null)"
cache="${SPARKDEPLOY_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/sparkdeploy}"
printf '\nsparkdeploy:version=%s\nsparkdeploy:cache=%s\n' "$version" "$cache"
[ -n "$digest" ] && [ "$version" = "$wanted" ] || exit 0
set -e
umask 077
mkdir -p "$cache/from"
cd "$cache/from"
new="$(mktemp -d new-XXXXXX)"
base64 -d | tar -xz -C "$new"
# A folder has its digest as its name only once it is whole.
mv -T "$new" "$digest" 2>/dev/null || { rm -rf "$new"; touch "$digest"; }
ls -1td ./*/ | tail -n +21 | while read -r old; do rm -rf "$old"; done
