#!/usr/bin/env bash
# Installs sparkdeploy from this checkout, and on a DGX Spark prepares the default recipe.
set -euo pipefail

CHECKOUT="$(cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")" && pwd)"
# A user's own: the program's data, and what this script installs without root.
OWN_HOME="${XDG_DATA_HOME:-$HOME/.local/share}/sparkdeploy"
TMPFILES="${SPARKDEPLOY_TMPFILES:-/etc/tmpfiles.d}"

EXIT_PREREQUISITE=4
MODE=plain # plain | tool-only | rehearse | up | uninstall
RECIPE=""
AGREED=0
PURGE=0
FOR_ALL="" # as root: the command is for all users

usage() {
  cat <<'TEXT'
Usage: ./install.sh [MODE] [--yes]

Installs the command `sparkdeploy` from this checkout into a virtual environment of its own, and
runs `sparkdeploy setup`, which names all that is missing. On a DGX Spark it then prepares the
default recipe (images, checkpoint) and prints the start command.

Modes (one at most):
  --tool-only         install the command and nothing else; needs only Python
  --rehearse RECIPE   install, then run `sparkdeploy rehearse RECIPE` (no GPU needed)
  --up RECIPE         install, then run `sparkdeploy up RECIPE`
  --uninstall         remove the command; says what stays. With --purge also sparkdeploy's
                      containers, images, caches and prepared checkpoints
  --help              this text
--yes asks nothing. Without root it also lets this script call sudo, which it never does otherwise:
it prints the commands instead. Root gets what is missing from the distribution (Docker Engine too).

Environment: SPARKDEPLOY_HOME (folder of the virtual environment; /opt/sparkdeploy for root),
SPARKDEPLOY_BIN (folder of the link), SPARKDEPLOY_PYTHON (interpreter to use); pip's own
configuration (PIP_CERT, PIP_INDEX_URL, pip.conf) is honoured.

Exit codes: 0 done; 1 a step failed; 2 usage; 4 prerequisites are missing; otherwise the code of
the sparkdeploy command that was run.
TEXT
}

main() {
  parse_arguments "$@"
  choose_places
  if [ "$MODE" = uninstall ]; then
    uninstall
    return
  fi
  meet_python
  install_tool
  link_tool
  complete_names
  case "$MODE" in
    tool-only) print_next_steps ;;
    rehearse) set_up --rehearsal; run_tool rehearse "$RECIPE" ;;
    up) set_up; run_tool up "$RECIPE" ;;
    plain)
      set_up
      if nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | grep -q GB10; then
        run_tool up --prepare
        printf 'Ready. Start the model with:\n  sparkdeploy up\n'
      else
        print_next_steps
      fi ;;
  esac
}

parse_arguments() {
  while [ $# -gt 0 ]; do
    case "$1" in
      --help | -h) usage; exit 0 ;;
      --yes | -y) AGREED=1 ;;
      --purge) PURGE=1 ;;
      --tool-only | --uninstall) choose_mode "${1#--}" ;;
      --rehearse | --up)
        choose_mode "${1#--}"
        case "${2:-}" in "" | -*) usage_error "$1 needs the name of a recipe" ;; esac
        RECIPE="$2"
        shift
        ;;
      *) usage_error "unknown argument: $1" ;;
    esac
    shift
  done
  if [ "$PURGE" -eq 1 ] && [ "$MODE" != uninstall ]; then
    usage_error "--purge goes with --uninstall only"
  fi
}

choose_mode() {
  if [ "$MODE" != plain ]; then usage_error "--$MODE and --$1 exclude each other"; fi
  MODE="$1"
}

usage_error() { fail 2 "install.sh: $1"$'\n'"Try: ./install.sh --help"; }

choose_places() {
  local home="$OWN_HOME" bin="$HOME/.local/bin"
  if is_root; then home=/opt/sparkdeploy bin=/usr/local/bin FOR_ALL=yes; fi
  TOOL_HOME="${SPARKDEPLOY_HOME:-$home}"
  VENV="$TOOL_HOME/venv"
  LINK="${SPARKDEPLOY_BIN:-$bin}/sparkdeploy"
}

# Sets PYTHON; as root installs one that is missing, for all else `sparkdeploy setup` needs it.
meet_python() {
  local sudo="sudo "
  if is_root; then sudo=""; fi
  find_python
  if [ -z "$PYTHON" ] && { is_root || [ "$AGREED" -eq 1 ]; } && command -v apt-get >/dev/null; then
    install_packages "${PYTHON_PACKAGES[@]}"
    find_python
  fi
  if [ -n "$PYTHON" ]; then return; fi
  fail "$EXIT_PREREQUISITE" "Missing: Python 3.11 or newer with its venv module
  ${sudo}apt-get update && ${sudo}apt-get install -y ${PYTHON_PACKAGES[*]}
Then run ./install.sh again."
}

find_python() {
  local candidate python=python3
  PYTHON=""
  if grep -qs '^VERSION_ID="22.04"' /etc/os-release; then python=python3.11; fi
  PYTHON_PACKAGES=("$python" "$python-venv")
  for candidate in ${SPARKDEPLOY_PYTHON:+"$SPARKDEPLOY_PYTHON"} python3 python3.1{4,3,2,1} /usr/bin/python3; do
    # Debian packages ensurepip apart.
    if ! "$candidate" -I -c 'import ensurepip, venv, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then continue; fi
    PYTHON="${PYTHON:-$candidate}"
    if [ -n "${SPARKDEPLOY_PYTHON:-}" ] || ! is_for_root_alone "$candidate"; then
      PYTHON="$candidate"
      return
    fi
  done
}

is_for_root_alone() {
  [ -n "$FOR_ALL" ] && [[ "$("$1" -I -c 'import os, sys; print(os.path.realpath(sys.executable))')" == /root/* ]]
}

is_root() { [ "$(id -u)" -eq 0 ]; }

# Shows what apt says only when it fails, and then ends.
install_packages() {
  local output apt=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0)
  if ! is_root; then apt=(sudo -- "${apt[@]}"); fi
  step "Installing packages: $*"
  output="$("${apt[@]}" update 2>&1 && "${apt[@]}" install -y --no-install-recommends "$@" 2>&1)" ||
    fail 1 "$output"$'\n'"These packages could not be installed: $*"
  done_in
}

install_tool() {
  local wanted stamp="$VENV/installed-sources"
  wanted="$(sources_stamp)"
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && "$VENV/bin/sparkdeploy" --version >/dev/null; then
    say "sparkdeploy is installed from these very sources already"
    return
  fi
  step "Installing sparkdeploy into $VENV"
  if is_root; then umask 022; fi
  mkdir -p -- "$TOOL_HOME"
  rm -f -- "$stamp"
  if ! "$VENV/bin/python" -I -m pip --version >/dev/null 2>&1 ||
    [ "$("$VENV/bin/python" --version)" != "$("$PYTHON" --version)" ]; then
    "$PYTHON" -I -m venv --clear "$VENV"
  fi
  PIP_DISABLE_PIP_VERSION_CHECK=1 "$VENV/bin/python" -I -m pip install --quiet "$CHECKOUT" >&2 ||
    fail 1 "pip could not install sparkdeploy. Behind a proxy or a private CA, set HTTPS_PROXY,
PIP_CERT or PIP_INDEX_URL (pip.conf works too) and run ./install.sh again."
  "$VENV/bin/sparkdeploy" --version >/dev/null
  printf '%s\n' "$wanted" >"$stamp"
  done_in
}

# Contents of all that enters the package, and the interpreter it was installed for.
sources_stamp() {
  "$PYTHON" --version
  cd -- "$CHECKOUT"
  find pyproject.toml README.md LICENSE sparkdeploy recipes dockerfiles \
    -type d -name __pycache__ -prune -o -type f -print0 |
    LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum
}

link_tool() {
  local folder="${LINK%/*}"
  if [ -e "$LINK" ] && [ ! -L "$LINK" ]; then
    fail 1 "$LINK is a file that this script did not make. Move it away, or set SPARKDEPLOY_BIN."
  fi
  mkdir -p -- "$folder"
  ln -sfn -- "$VENV/bin/sparkdeploy" "$LINK"
  say "Command: $LINK"
  if is_for_root_alone "$VENV/bin/python"; then
    say "Only root can run it, for its Python lies below /root. SPARKDEPLOY_PYTHON names another one."
  fi
  case ":$PATH:" in
    *":$folder:"*) ;;
    *) say "$folder is not on your PATH. Add it:  export PATH=\"$folder:\$PATH\"" ;;
  esac
  if has_older_place; then
    remove "$OWN_HOME/venv"
    ln -s -- "$VENV" "$OWN_HOME/venv"
    say "It leads to $VENV now, for units of systemd that were exported before."
  fi
}

# Earlier versions installed for root where nobody else could read it. With `sudo -E` the home is
# another user's, and so is what is installed there.
has_older_place() {
  [ -z "${SPARKDEPLOY_HOME:-}" ] && [ "$OWN_HOME" != "$TOOL_HOME" ] &&
    [ -d "$OWN_HOME/venv" ] && [ ! -L "$OWN_HOME/venv" ] && [ -O "$OWN_HOME/venv" ]
}

# Where a shell looks for completions of its user; zsh only where its fpath names the folder.
completion_of() {
  local data="${XDG_DATA_HOME:-${HOME:-}/.local/share}"
  case "$1" in
    bash) echo "${BASH_COMPLETION_USER_DIR:-$data/bash-completion}/completions/sparkdeploy" ;;
    zsh) echo "$data/zsh/site-functions/_sparkdeploy" ;;
    fish) echo "${XDG_CONFIG_HOME:-${HOME:-}/.config}/fish/completions/sparkdeploy.fish" ;;
  esac
}

# Tab completes names in the user's login shell. Who cannot have it can do without. With sudo the
# home may be another user's, and so would be what is written there.
complete_names() {
  local shell="${SHELL:-}" file script
  shell="${shell##*/}"
  file="$(completion_of "$shell")"
  if [ -z "$file" ] || [ ! -O "${HOME:-/}" ]; then return; fi
  # zsh wants `#compdef` in the first line, and Typer's script begins with an empty one.
  script="$(_SPARKDEPLOY_COMPLETE="source_$shell" "$VENV/bin/sparkdeploy" | grep .)" || return 0
  if mkdir -p -- "${file%/*}" && printf '%s\n' "$script" >"$file"; then
    say "Tab completes names in shells that are started from now on, by $file"
    if [ "$shell" = zsh ]; then say "zsh finds it with this in ~/.zshrc, before compinit:  fpath+=(${file%/*})"; fi
  fi
}

remove_completion() {
  local shell file
  if [ ! -O "${HOME:-/}" ]; then return; fi
  for shell in bash zsh fish; do
    file="$(completion_of "$shell")"
    if [ -f "$file" ]; then remove "$file"; fi
  done
}

# What is missing is told with all commands; root has it installed, and --yes lets sudo do so.
set_up() {
  local yes=() code=0
  if is_root; then yes=(--yes); fi
  step "Looking for all that is needed"
  "$VENV/bin/sparkdeploy" setup "$@" "${yes[@]}" >&2 || code=$?
  if [ "$code" -eq "$EXIT_PREREQUISITE" ] && ! is_root && [ "$AGREED" -eq 1 ]; then
    sudo -- "$VENV/bin/sparkdeploy" setup "$@" --yes >&2 || code=$?
    "$VENV/bin/sparkdeploy" setup "$@" >&2 && code=0
  fi
  if [ "$code" -ne 0 ]; then fail "$code" "Then run ./install.sh again. (./install.sh --tool-only needs only Python.)"; fi
  done_in
}

run_tool() {
  local code=0
  say "Running: sparkdeploy $*"
  if [ "$1" = up ] && [ "$AGREED" -eq 1 ]; then set -- "$@" --yes; fi
  "$VENV/bin/sparkdeploy" "$@" || code=$?
  if [ "$code" -ne 0 ]; then say "sparkdeploy $1 ended with exit code $code"; fi
  return "$code"
}

print_next_steps() {
  cat <<'TEXT'
Installed. Next:
  sparkdeploy list              the recipes
  sparkdeploy setup             what this machine lacks, with the commands that bring it
  sparkdeploy rehearse v2       the whole path in miniature, on any machine, no GPU needed
  sparkdeploy up v2             deploy (on a DGX Spark)
TEXT
}

uninstall() {
  if [ ! -d "$VENV" ] && has_older_place; then TOOL_HOME="$OWN_HOME" VENV="$OWN_HOME/venv"; fi
  if [ "$PURGE" -eq 1 ]; then
    if [ ! -x "$VENV/bin/python" ]; then meet_python; install_tool; fi
    # This checkout's program, by whichever version's virtual environment is there.
    PYTHONPATH="$CHECKOUT" "$VENV/bin/python" -P -m sparkdeploy.uninstall --yes >&2
  fi
  remove_completion
  if [ -L "$LINK" ] && [ "$(readlink -- "$LINK")" = "$VENV/bin/sparkdeploy" ]; then remove "$LINK"; fi
  if [ -L "$OWN_HOME/venv" ] && [ "$(readlink -- "$OWN_HOME/venv")" = "$VENV" ]; then
    remove "$OWN_HOME/venv"
    rmdir -- "$OWN_HOME" 2>/dev/null || true
  fi
  if is_root; then rm -f -- "$TMPFILES/sparkdeploy.conf"; fi
  if [ -d "$VENV" ]; then remove "$VENV"; else say "No virtual environment at $VENV"; fi
  # The folder of the virtual environment may be the user's own: it goes only when it is empty.
  rmdir -- "$TOOL_HOME" 2>/dev/null || true
  if [ "$PURGE" -eq 1 ]; then return; fi
  say "Deployments, images, checkpoints ($OWN_HOME), caches and state stay; all of them go with
  ./install.sh --uninstall --purge    (settings and downloaded models stay even then)"
}

remove() { rm -rf -- "$1"; say "Removed $1"; }

say() { printf '%s\n' "$*" >&2; }

fail() { say "$2"; exit "$1"; }

step() { STEP_STARTED_S=$SECONDS; say "==> $*"; }

done_in() { say "    done in $((SECONDS - STEP_STARTED_S)) s"; }

# tests/run sources this file for its prerequisites.
if [ "${BASH_SOURCE[0]}" = "$0" ]; then main "$@"; fi
