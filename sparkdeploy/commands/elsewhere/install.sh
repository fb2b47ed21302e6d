# shellcheck shell=sh disable=SC2154 # the lines that assign its variables are put before it
# Makes the program a virtual environment in the folder where it was unpacked.
exec 2>&1 </dev/null
set -eu
umask 077
cd "$staged"
PATH="$PATH:$HOME/.local/bin:$HOME/.cargo/bin"
# uv does not read pip's configuration, where a machine's package index often stands.
if ! {
  command -v uv >/dev/null && uv venv --python '>=3.11' venv &&
    uv pip install --python venv/bin/python --requirement requirements.txt
}; then
  rm -rf venv
  python3 -I -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    { echo "python3 there is older than 3.11"; exit 1; }
  python3 -I -m venv venv
  venv/bin/python -I -m pip install --disable-pip-version-check --requirement requirements.txt
fi
export PYTHONDONTWRITEBYTECODE=1
found="$(PYTHONPATH="$staged" venv/bin/python -P -m sparkdeploy --identity)"
[ "$found" = "$identity" ] || { echo "it is $found, and not $identity"; exit 1; }
site="$(venv/bin/python -I -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
printf '%s\n' "$into/$name" >"$site/sparkdeploy.pth"
[ -x "$into/$name/venv/bin/python" ] || rm -rf "${into:?}/$name"
