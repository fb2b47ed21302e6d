# shellcheck shell=sh disable=SC2154 # the lines that assign its variables are put before it
# Tells where the cache is, and whether it has the files and the same program.
# Cheapest first: a folder's name says what it holds, an installed program has to start.
cache="${SPARKDEPLOY_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/sparkdeploy}"
PATH="$PATH:$HOME/.local/bin"
tell() { printf '\nsparkdeploy:%s=%s\n' "$1" "$2"; }
# Another user there may have made what stands at a path of ours, as below /tmp.
ours() {
  path="$1"
  while [ -n "$path" ]; do
    case "$(stat -c %u "$path")" in 0 | "$(id -u)") ;; *) return 1 ;; esac
    path="${path%/*}"
  done
}
same() { [ "$("$@" --identity 2>/dev/null </dev/null)" = "$identity" ]; }
tell cache "$cache"
if [ -d "$cache/from/$digest" ]; then touch "$cache/from/$digest"; tell sent "$digest"; fi
brought="$cache/program/$identity"
if [ -x "$brought/venv/bin/python" ]; then
  touch "$brought"
  tell python "$brought/venv/bin/python"
elif [ -x "$interpreter" ] && ours "$interpreter" && same "$interpreter" -P -m sparkdeploy; then
  tell python "$interpreter"
elif installed="$(command -v sparkdeploy)" && same "$installed"; then
  tell command "$installed"
fi
