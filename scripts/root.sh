# shellcheck shell=bash
# Roots of Debian, and commands run in them, for scripts/bare and scripts/elsewhere. Sourced after
# lib.sh, not run; needs root.
#
# A command runs in namespaces of its own for mounts and processes, so whatever it or this script
# mounts and starts there ends with it, however it ends, and a root can be removed without looking
# into what was lent.

# shellcheck disable=SC2034  # used where this is sourced
ROOTS=$CACHE/roots

make_root() { # ROOT RELEASE ARCHITECTURE PACKAGES, made once; PACKAGES with commas between them
  local root=$1 mirror
  [ ! -e "$root.made" ] || return 0
  note "making $root"
  mkdir -p "$ROOTS"
  rm -rf "$root"
  # where this machine's apt fetches Debian's main archive from
  mirror=$(apt-get indextargets --format "\$(REPO_URI)" "Created-By: Packages" \
             "Component: main" "Origin: Debian" 2>/dev/null | head -n 1)
  debootstrap --arch="$3" --variant=minbase --include="$4" "$2" "$root" ${mirror:+"$mirror"} \
    >"$root.log" 2>&1 || { cat "$root.log" >&2; die "debootstrap failed"; }
  # a mirror may stand still; the other settings that this machine needs to reach it
  {
    echo 'Acquire::Check-Valid-Until "false";'
    apt-config dump | grep -E '^Acquire::(Check-Date|.*Proxy.*) ' || true
  } >"$root/etc/apt/apt.conf.d/99machine"
  touch "$root.made"
}

enter_root() { # ROOT USER GO COMMAND…: run COMMAND as USER there; GO, true or empty, lends this machine's Go
  local root=$1 user=$2 go=$3 home
  shift 3
  home=$(sed -n "s/^$user:[^:]*:[^:]*:[^:]*:[^:]*:\([^:]*\):.*/\1/p" "$root/etc/passwd")
  cp /etc/resolv.conf "$root/etc/"
  printf '127.0.0.1 localhost\n::1 localhost\n127.0.1.1 %s\n' "$(uname -n)" >"$root/etc/hosts"
  local variables=(HOME="$home" USER="$user" PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin)
  local name
  for name in TERM http_proxy https_proxy no_proxy; do
    [ -z "${!name:-}" ] || variables+=("$name=${!name}")
  done
  local lent=(/sys /sys /dev /dev)
  if [ -n "$go" ]; then
    variables[2]=PATH=/usr/local/go/bin:${variables[2]#PATH=}
    lent+=("$(go env GOROOT)" /usr/local/go "$(go env GOMODCACHE)" "$home/go/pkg/mod")
    if [ "$user" = root ]; then lent+=("$(go env GOCACHE)" "$home/.cache/go-build"); fi
  fi
  # The shell stays to take in the processes that lose their parents.
  # shellcheck disable=SC2016
  setpriv --pdeathsig KILL unshare --mount --propagation private --pid --fork --kill-child bash -euc '
    root=$1 user=$2; shift 2
    mount -t proc proc "$root/proc"
    while [ "$1" != -- ]; do
      mkdir -p "$1" "$root$2"
      mount --rbind "$1" "$root$2"
      shift 2
    done
    shift
    chroot --userspec="$user:" "$root" env -i "$@" || exit
    exit 0' in-root "$root" "$user" "${lent[@]}" -- "${variables[@]}" "$@"
}
