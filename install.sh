#!/usr/bin/env bash
# Installs sparkdeploy from this checkout, and on a DGX Spark prepares the default recipe.
set -euo pipefail

CHECKOUT="$(cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")" && pwd)"
TOOL_HOME="${SPARKDEPLOY_HOME:-${XDG_DATA_HOME:-$HOME/.local/share}/sparkdeploy}"
VENV="$TOOL_HOME/venv"
STAMP="$VENV/installed-sources"
ENGINE_LOG="${SPARKDEPLOY_ENGINE_LOG:-/var/log/sparkdeploy-dockerd.log}"
DOCKER_SOCKET_WAIT_S=60
OUR_LABEL="dev.sparkdeploy.kind"
OUR_NAMES="name=^/sparkdeploy-"
LOCK_FOLDER="${SPARKDEPLOY_LOCK_DIR:-/run/lock/sparkdeploy}"
TMPFILES="${SPARKDEPLOY_TMPFILES:-/etc/tmpfiles.d}"
DEBIAN_KEYRING="${SPARKDEPLOY_DEBIAN_KEYRING:-/usr/share/keyrings/debian-archive-keyring.gpg}"

# A user's PATH on Debian lacks the folders where dockerd, iptables and runc's friends live.
PATH="$PATH${SPARKDEPLOY_SYSTEM_PATH-:/usr/local/sbin:/usr/sbin:/sbin}"

EXIT_FAILED=1
EXIT_USAGE=2
EXIT_PREREQUISITE=4

MODE=plain     # plain | tool-only | rehearse | up | uninstall
RECIPE=""
AGREED=0
PURGE=0

# What is missing: three arrays of one length. A package is empty where apt cannot help.
MISSING=()
FIXES=()
PACKAGES=()

usage() {
  cat <<'TEXT'
Usage: ./install.sh [MODE] [--yes]

Installs the command `sparkdeploy` from this checkout into a virtual environment of its own.
On a DGX Spark it then prepares the default recipe (images, checkpoint) and prints the start command.

Modes (one at most):
  --tool-only         install the command and nothing else; needs only Python
  --rehearse RECIPE   install, then run `sparkdeploy rehearse RECIPE` (no GPU needed)
  --up RECIPE         install, then run `sparkdeploy up RECIPE`
  --uninstall         remove the command; says what stays. With --purge also sparkdeploy's
                      containers, images, caches and prepared checkpoints
  --help              this text

Options:
  --yes               do not ask. Without root it also lets this script call sudo, which it
                      never does otherwise: it prints the commands instead

As root, missing packages (Docker Engine among them) are installed from the distribution and the
engine is started. Environment: SPARKDEPLOY_HOME (folder of the virtual environment),
SPARKDEPLOY_BIN (folder of the link), SPARKDEPLOY_PYTHON (interpreter to use); pip's own
configuration (PIP_CERT, PIP_INDEX_URL, pip.conf) is honoured.

Exit codes: 0 done; 1 a step failed; 2 usage; 4 prerequisites are missing; otherwise the code of
the sparkdeploy command that was run.
TEXT
}

main() {
  parse_arguments "$@"
  if [ "$MODE" = uninstall ]; then
    uninstall
    return
  fi
  meet_prerequisites
  install_tool
  link_tool
  complete_names
  if is_root; then share_lock_folder; fi
  case "$MODE" in
    rehearse) run_tool rehearse "$RECIPE" ;;
    up) run_tool up "$RECIPE" ;;
    plain) if has_spark_gpu; then prepare_default_recipe; else print_next_steps; fi ;;
    tool-only) print_next_steps ;;
  esac
}

# ---------------------------------------------------------------------------------- arguments

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

usage_error() {
  printf 'install.sh: %s\n' "$1" >&2
  printf 'Try: ./install.sh --help\n' >&2
  exit "$EXIT_USAGE"
}

# -------------------------------------------------------------------------------- prerequisites

meet_prerequisites() {
  step "Checking prerequisites"
  find_missing
  if [ "${#MISSING[@]}" -gt 0 ] && may_install && all_fixable; then
    install_missing
    step "Checking prerequisites again"
    find_missing
  fi
  if [ "${#MISSING[@]}" -gt 0 ]; then
    report_missing
    exit "$EXIT_PREREQUISITE"
  fi
  done_in
}

find_missing() {
  MISSING=()
  FIXES=()
  PACKAGES=()
  check_platform
  check_python
  if [ "$MODE" = tool-only ]; then return; fi
  check_engine
  check_base_image_source
  if needs_gpu; then check_gpu; fi
}

check_platform() {
  case "$(uname -s)/$(uname -m)" in
    Linux/x86_64 | Linux/aarch64) ;;
    *) missing "Linux on x86-64 or aarch64 (this is $(uname -s) on $(uname -m))" \
      "run this on the Spark itself, or on any Linux machine to rehearse" "" ;;
  esac
}

check_python() {
  local candidate
  PYTHON=""
  ANY_PYTHON=""
  for candidate in "${SPARKDEPLOY_PYTHON:-python3}" python3.14 python3.13 python3.12 python3.11; do
    case "$(python_state "$candidate")" in
      ready) PYTHON="$candidate"; ANY_PYTHON="$candidate"; return ;;
      bare) ANY_PYTHON="$candidate" ;;
      *) continue ;;
    esac
    # The version is in the name only where the distribution packages several.
    local package="python3-venv"
    if [ "$candidate" != python3 ]; then package="${candidate##*/}-venv"; fi
    missing "Python's venv module (for $candidate)" "apt-get install -y $package" "$package"
    return
  done
  if [ "$(distribution)" = ubuntu/22.04 ]; then
    missing "Python 3.11 or newer" "apt-get install -y python3.11 python3.11-venv" \
      "python3.11 python3.11-venv"
  else
    missing "Python 3.11 or newer" "apt-get install -y python3 python3-venv" "python3 python3-venv"
  fi
}

# Prints `ready`, `bare` (Debian packages ensurepip apart), `old`, or nothing when there is none.
python_state() {
  if ! command -v "$1" >/dev/null; then return; fi
  "$1" -I -c 'import importlib.util, sys
has_venv = all(map(importlib.util.find_spec, ("ensurepip", "venv")))
print("old" if sys.version_info < (3, 11) else "ready" if has_venv else "bare")' 2>/dev/null || printf 'broken'
}

check_engine() {
  ENGINE_RUNTIMES=""
  local state root
  IFS=$'\t' read -r state root ENGINE_RUNTIMES < <(probe_engine)
  case "$state" in
    answers) check_disk "$root" ;;
    elsewhere) ENGINE_RUNTIMES=nvidia ;; # another machine's; sparkdeploy looks itself
    denied) missing "the right to use the Docker Engine without sudo" \
      "usermod -aG docker $(id -un)    # then log out and in again" "" ;;
    *)
      if command -v dockerd >/dev/null; then
        missing "a running Docker Engine" "$(engine_start_command)" "engine"
      else
        missing "Docker Engine" "apt-get install -y $(engine_packages)" "$(engine_packages)"
      fi
      check_disk /var/lib
      ;;
  esac
}

# Prints state, data folder and runtimes. Asks the socket that sparkdeploy's own library will ask:
# a `docker` client may be there without an engine, or talk to another one through its context.
probe_engine() {
  local probe='
import http.client, json, os, socket
host = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
class Engine(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(10)
        self.sock.connect(host[len("unix://"):])
def ask():
    if not host.startswith("unix://"):
        return "elsewhere", "-", "-"
    try:
        engine = Engine("localhost")
        engine.request("GET", "/info")
        info = json.load(engine.getresponse())
    except PermissionError:
        return "denied", "-", "-"
    except (OSError, http.client.HTTPException, ValueError):
        return "silent", "-", "-"
    runtimes = ",".join(info.get("Runtimes") or {})
    return "answers", info.get("DockerRootDir") or "/var/lib/docker", runtimes or "-"
print("\t".join(ask()))
'
  if [ -n "$ANY_PYTHON" ]; then
    "$ANY_PYTHON" -I -c "$probe"
  elif [ -S /var/run/docker.sock ] && command -v dockerd >/dev/null; then
    printf 'answers\t/var/lib/docker\tnvidia\n' # cannot be asked before Python is there
  else
    printf 'silent\t-\t-\n'
  fi
}

check_disk() {
  local folder="$1" needed_gib=30 free_kib
  if [ "$MODE" = rehearse ] || { [ "$MODE" = plain ] && ! has_spark_gpu; }; then needed_gib=10; fi
  while [ ! -d "$folder" ]; do folder="$(dirname -- "$folder")"; done
  { read -r _ && read -r _ _ _ free_kib _; } < <(df -Pk -- "$folder")
  if [ "$free_kib" -lt $((needed_gib * 1024 * 1024)) ]; then
    missing "disk space for images: $needed_gib GiB under $folder ($((free_kib / 1024 / 1024)) GiB free)" \
      "docker system df    # shows what could go; or move Docker's data-root to a larger disk" ""
  fi
}

# Where no container registry answers, the base image is made from the distribution's packages.
check_base_image_source() {
  local wanted=()
  if ! command -v mmdebstrap >/dev/null; then wanted+=(mmdebstrap); fi
  # Ubuntu's apt cannot verify Debian's signatures without it.
  if [ ! -e "$DEBIAN_KEYRING" ]; then wanted+=(debian-archive-keyring); fi
  # Without root mmdebstrap works in a user namespace, or else below fakechroot.
  if ! is_root && ! command -v newuidmap >/dev/null && ! command -v fakechroot >/dev/null; then
    wanted+=(uidmap)
  fi
  if [ "${#wanted[@]}" -eq 0 ] || registry_answers; then return; fi
  missing "${wanted[*]} (no container registry answers, so the base image is made from packages)" \
    "apt-get install -y ${wanted[*]}" "${wanted[*]}"
}

registry_answers() {
  local host
  host="$(sed -n 's/^container_registry: *//p' "$CHECKOUT/sparkdeploy/registries.yaml")"
  host="${SPARKDEPLOY_CONTAINER_REGISTRY:-$host}"
  local probe='
import sys, urllib.error, urllib.request
try:
    urllib.request.urlopen(f"https://{sys.argv[1]}/v2/", timeout=5)
except urllib.error.HTTPError as answer:
    sys.exit(answer.code not in (401, 404))
except OSError:
    sys.exit(1)
'
  [ -n "$ANY_PYTHON" ] && "$ANY_PYTHON" -I -c "$probe" "$host"
}

needs_gpu() {
  [ "$MODE" = up ] || { [ "$MODE" = plain ] && has_spark_gpu; }
}

# Only what this script can fix: which GPU and how much memory a recipe needs, `up` says itself.
check_gpu() {
  if ! gpu_names >/dev/null; then return; fi
  case "$ENGINE_RUNTIMES" in
    *nvidia*) ;;
    *) missing "NVIDIA's container runtime in Docker" \
      "apt-get install -y nvidia-container-toolkit && nvidia-ctk runtime configure --runtime=docker && systemctl restart docker" "" ;;
  esac
}

gpu_names() {
  command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null
}

has_spark_gpu() {
  local names
  names="$(gpu_names)" && [[ "$names" == *GB10* ]]
}

missing() {
  MISSING+=("$1")
  FIXES+=("$2")
  PACKAGES+=("$3")
}

report_missing() {
  local index prefix=""
  if ! is_root; then prefix="sudo "; fi
  printf '\n%d missing:\n' "${#MISSING[@]}" >&2
  for index in "${!MISSING[@]}"; do
    printf '  - %s\n      %s\n' "${MISSING[$index]}" "$(with_sudo "$prefix" "${FIXES[$index]}")" >&2
  done
  printf '\nThen run ./install.sh again.' >&2
  if [ "$MODE" != tool-only ]; then
    printf ' (./install.sh --tool-only needs only Python.)' >&2
  fi
  printf '\n' >&2
}

with_sudo() {
  local prefix="$1" command="$2"
  case "$command" in
    apt-get\ install*) printf '%s' "${prefix}apt-get update && $prefix${command//&& /&& $prefix}" ;;
    usermod* | systemctl* | sh\ -c*) printf '%s' "$prefix$command" ;;
    *) printf '%s' "$command" ;;
  esac
}

# ------------------------------------------------------------------------- installing as root

is_root() { [ "$(id -u)" -eq 0 ]; }

may_install() { is_root || [ "$AGREED" -eq 1 ]; }

all_fixable() {
  local package
  for package in "${PACKAGES[@]}"; do
    if [ -z "$package" ]; then return 1; fi
  done
  command -v apt-get >/dev/null
}

as_root() {
  if is_root; then "$@"; else sudo -- "$@"; fi
}

install_missing() {
  local entry words names=() wants_engine=0
  for entry in "${PACKAGES[@]}"; do
    case "$entry" in engine | docker.io*) wants_engine=1 ;; esac
    if [ "$entry" = engine ]; then continue; fi
    read -ra words <<<"$entry"
    names+=("${words[@]}")
  done
  if [ "${#names[@]}" -gt 0 ]; then
    step "Installing packages: ${names[*]}"
    install_packages "${names[@]}"
    done_in
  fi
  if [ "$wants_engine" -eq 1 ]; then start_engine; fi
}

install_packages() {
  quietly as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq update
  quietly as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get -qq -o Dpkg::Use-Pty=0 install -y --no-install-recommends "$@"
}

# Shows a command's output only when it fails, and then ends.
quietly() {
  local output
  if ! output="$("$@" 2>&1)"; then
    printf '%s\nThis failed: %s\n' "$output" "$*" >&2
    exit "$EXIT_FAILED"
  fi
}

# docker.io's recommendations are left out, so what it cannot run without stands here.
engine_packages() {
  local list="docker.io iptables ca-certificates xz-utils"
  if [ -e /sys/module/apparmor/parameters/enabled ]; then list+=" apparmor"; fi
  if ! [ -d /run/systemd/system ] && ! mountpoint -q /sys/fs/cgroup; then list+=" cgroupfs-mount"; fi
  printf '%s' "$list"
}

engine_start_command() {
  if [ -d /run/systemd/system ]; then
    printf 'systemctl enable --now docker'
  else
    printf "sh -c 'setsid dockerd >>%s 2>&1 </dev/null &'" "$ENGINE_LOG"
  fi
}

start_engine() {
  step "Starting the Docker Engine"
  if [ -d /run/systemd/system ]; then
    as_root systemctl enable --now docker
  elif ! engine_is_starting; then
    # No service manager: a session of its own, holding none of our descriptors.
    # shellcheck disable=SC2016 # $1 is the inner shell's
    as_root sh -c 'setsid dockerd >>"$1" 2>&1 </dev/null &' sh "$ENGINE_LOG"
  fi
  wait_for_engine
  done_in
}

# The package's own init script may have started it already.
engine_is_starting() {
  local pid
  [ -r /var/run/docker.pid ] && pid="$(cat /var/run/docker.pid)" && [ -d "/proc/$pid" ]
}

wait_for_engine() {
  local deadline=$((SECONDS + DOCKER_SOCKET_WAIT_S)) state
  check_python
  while :; do
    IFS=$'\t' read -r state _ < <(probe_engine)
    case "$state" in answers | denied) return ;; esac
    if [ "$SECONDS" -ge "$deadline" ]; then
      printf 'The Docker Engine did not answer within %d s. Last lines of its log:\n' \
        "$DOCKER_SOCKET_WAIT_S" >&2
      if [ -r "$ENGINE_LOG" ]; then tail -n 15 "$ENGINE_LOG" >&2; else journalctl -u docker -n 15 >&2; fi
      exit "$EXIT_PREREQUISITE"
    fi
    sleep 0.5
  done
}

distribution() {
  if [ ! -r /etc/os-release ]; then printf 'unknown'; return; fi
  # shellcheck source=/dev/null
  (. /etc/os-release && printf '%s/%s' "${ID:-unknown}" "${VERSION_ID:-}")
}

# --------------------------------------------------------------------------------- the command

install_tool() {
  local wanted
  wanted="$(sources_stamp)"
  if [ -f "$STAMP" ] && [ "$(cat "$STAMP")" = "$wanted" ] && "$VENV/bin/sparkdeploy" --version >/dev/null; then
    say "sparkdeploy is installed from these very sources already"
    return
  fi
  step "Installing sparkdeploy into $VENV"
  mkdir -p -- "$TOOL_HOME"
  rm -f -- "$STAMP"
  if ! venv_fits; then "$PYTHON" -m venv --clear "$VENV"; fi
  PIP_DISABLE_PIP_VERSION_CHECK=1 "$VENV/bin/python" -m pip install --quiet "$CHECKOUT" >&2 || {
    printf 'pip could not install sparkdeploy. Behind a proxy or a private CA, set HTTPS_PROXY,\n' >&2
    printf 'PIP_CERT or PIP_INDEX_URL (pip.conf works too) and run ./install.sh again.\n' >&2
    exit "$EXIT_FAILED"
  }
  "$VENV/bin/sparkdeploy" --version >/dev/null
  printf '%s\n' "$wanted" >"$STAMP"
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

venv_fits() {
  [ -x "$VENV/bin/python" ] && "$VENV/bin/python" -m pip --version >/dev/null 2>&1 &&
    [ "$("$VENV/bin/python" --version)" = "$("$PYTHON" --version)" ]
}

link_folder() {
  if [ -n "${SPARKDEPLOY_BIN:-}" ]; then
    printf '%s' "$SPARKDEPLOY_BIN"
  elif is_root; then
    printf '/usr/local/bin'
  else
    printf '%s' "$HOME/.local/bin"
  fi
}

link_tool() {
  local folder link
  folder="$(link_folder)"
  link="$folder/sparkdeploy"
  if [ -e "$link" ] && [ ! -L "$link" ]; then
    printf '%s is a file that this script did not make. Move it away, or set SPARKDEPLOY_BIN.\n' "$link" >&2
    exit "$EXIT_FAILED"
  fi
  mkdir -p -- "$folder"
  ln -sfn -- "$VENV/bin/sparkdeploy" "$link"
  case ":$PATH:" in
    *":$folder:"*) say "Command: $link" ;;
    *) say "Command: $link"
      say "$folder is not on your PATH. Add it:  export PATH=\"$folder:\$PATH\"" ;;
  esac
}

# Tab completes names in the user's login shell. Who cannot have it can do without.
complete_names() {
  local shell="${SHELL:-}"
  shell="${shell##*/}"
  # With sudo the home may be another user's, and so would be what is written there.
  if ! [ -O "${HOME:-/}" ]; then return; fi
  case "$shell" in
    bash | zsh | fish) "$VENV/bin/sparkdeploy" completion install "$shell" >&2 || true ;;
  esac
}

# /run/lock is open to all and empty after a boot: whichever user comes first would own the folder
# of the lock that all of them share, and sparkdeploy refuses a folder that is another user's.
share_lock_folder() {
  local entry="$TMPFILES/sparkdeploy.conf"
  case "$LOCK_FOLDER" in *[[:space:]]*) return ;; /*) ;; *) return ;; esac
  if mkdir -p -- "$TMPFILES" && printf 'd %s 1777 root root -\n' "$LOCK_FOLDER" >"$entry"; then
    say "Lock folder of all users, from each boot on: $LOCK_FOLDER ($entry)"
  fi
  if command -v systemd-tmpfiles >/dev/null && systemd-tmpfiles --create "$entry"; then return; fi
  # One that is there stays: whose it is, sparkdeploy looks at itself.
  mkdir -m 1777 -- "$LOCK_FOLDER" 2>/dev/null || true
}

run_tool() {
  local code=0
  say "Running: sparkdeploy $*"
  if [ "$1" = up ] && [ "$AGREED" -eq 1 ]; then set -- "$@" --yes; fi
  "$VENV/bin/sparkdeploy" "$@" || code=$?
  if [ "$code" -ne 0 ]; then say "sparkdeploy $1 ended with exit code $code"; fi
  return "$code"
}

prepare_default_recipe() {
  run_tool up --prepare
  printf 'Ready. Start the model with:\n  sparkdeploy up\n'
}

print_next_steps() {
  cat <<'TEXT'
Installed. Next:
  sparkdeploy list              the recipes
  sparkdeploy rehearse v2       the whole path in miniature, on any machine, no GPU needed
  sparkdeploy plan v2           what a deployment would do, and what it needs
  sparkdeploy up v2             deploy (on a DGX Spark)
TEXT
}

# -------------------------------------------------------------------------------- uninstalling

uninstall() {
  local link
  link="$(link_folder)/sparkdeploy"
  if [ "$PURGE" -eq 1 ]; then purge; fi
  if [ -x "$VENV/bin/sparkdeploy" ] && [ -O "${HOME:-/}" ]; then
    "$VENV/bin/sparkdeploy" completion remove >&2 || true
  fi
  if [ -L "$link" ] && [ "$(readlink -- "$link")" = "$VENV/bin/sparkdeploy" ]; then
    rm -- "$link"
    say "Removed $link"
  fi
  if is_root; then rm -f -- "$TMPFILES/sparkdeploy.conf"; fi
  if [ -d "$VENV" ]; then
    rm -rf -- "$VENV"
    say "Removed $VENV"
  else
    say "No virtual environment at $VENV"
  fi
  if [ "$PURGE" -eq 0 ]; then print_what_stays; return; fi
  # The folder of the virtual environment may be the user's own: it goes only when it is empty.
  rmdir -- "$TOOL_HOME" 2>/dev/null || true
}

# The program's own folder, checkpoints included; SPARKDEPLOY_HOME does not move it.
data_folder() { printf '%s' "${XDG_DATA_HOME:-$HOME/.local/share}/sparkdeploy"; }

print_what_stays() {
  local data
  data="$(data_folder)"
  cat <<TEXT
These stay; remove them with:
  containers    docker ps -aq --filter label=$OUR_LABEL --filter '$OUR_NAMES' | xargs -r docker rm -f
  images        docker images -q --filter label=$OUR_LABEL | sort -u | xargs -r docker rmi -f
  checkpoints   rm -rf $data
  caches        rm -rf ${XDG_CACHE_HOME:-$HOME/.cache}/sparkdeploy
  state         rm -rf ${XDG_STATE_HOME:-$HOME/.local/state}/sparkdeploy
  settings      rm -rf ${XDG_CONFIG_HOME:-$HOME/.config}/sparkdeploy
  downloads     models in the Hugging Face cache are shared with other tools
All but settings and downloads at once:  ./install.sh --uninstall --purge
TEXT
}

# What is not ours is never touched. Anybody can put our label on a container, so its name counts
# too. Containers of ours without such a name are those of a check (role `check`) and of a build's
# steps: whoever makes them removes them within minutes. Images go by label.
purge() {
  local ids data
  data="$(data_folder)"
  if ! command -v docker >/dev/null; then
    printf 'The docker client is needed to remove containers and images: apt-get install -y docker.io\n' >&2
    exit "$EXIT_PREREQUISITE"
  fi
  ids="$(docker ps -aq --filter "label=$OUR_LABEL" --filter "$OUR_NAMES")"
  if [ -n "$ids" ]; then xargs docker rm -f <<<"$ids" >&2; fi
  purge_images
  rm -rf -- "$data" "${XDG_CACHE_HOME:-$HOME/.cache}/sparkdeploy" \
    "${XDG_STATE_HOME:-$HOME/.local/state}/sparkdeploy"
  say "Removed sparkdeploy's containers, images, checkpoints ($data), caches and state"
}

# An image goes only after those made from it: in rounds, until a round removes nothing.
purge_images() {
  local ids id removed=1
  while [ "$removed" -gt 0 ]; do
    removed=0
    ids="$(our_images)"
    for id in $ids; do
      if docker rmi "$id" >/dev/null 2>&1 || docker rmi -f "$id" >/dev/null 2>&1; then
        removed=$((removed + 1))
      fi
    done
  done
  if [ -z "$ids" ]; then return; fi
  printf 'These images could not be removed; something that is not ours was made from them:\n' >&2
  xargs docker rmi <<<"$ids" >&2 || exit "$EXIT_FAILED"
}

# Ids of the images that carry our label, and of the untagged steps that a build made on them.
our_images() {
  local known added all id parent tags
  known="$(docker images -aq --no-trunc --filter "label=$OUR_LABEL" | sort -u)"
  if [ -z "$known" ]; then return; fi
  all="$(docker images -aq --no-trunc | sort -u |
    xargs docker image inspect --format '{{.Id}} {{or .Parent "-"}} {{len .RepoTags}}')"
  added=1
  while [ "$added" -eq 1 ]; do
    added=0
    while read -r id parent tags; do
      if [ "$tags" = 0 ] && [[ "$known" == *"$parent"* ]] && [[ "$known" != *"$id"* ]]; then
        known="$id"$'\n'"$known"
        added=1
      fi
    done <<<"$all"
  done
  printf '%s\n' "$known"
}

# ------------------------------------------------------------------------------------- talking

say() { printf '%s\n' "$*" >&2; }

STEP_STARTED_S=0
step() {
  STEP_STARTED_S=$SECONDS
  say "==> $*"
}

done_in() { say "    done in $((SECONDS - STEP_STARTED_S)) s"; }

# tests/run sources this file for its prerequisites.
if [ "${BASH_SOURCE[0]}" = "$0" ]; then main "$@"; fi
