# shellcheck shell=bash
# What the shell scripts of clgrpc share. Sourced, not run.

# shellcheck disable=SC2034  # used where this is sourced
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck disable=SC2034
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/clgrpc

note() { printf '%s\n' "$*" >&2; }
die() { note "$(basename "$0"): $*"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }
