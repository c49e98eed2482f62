# shellcheck shell=bash
# Functions that ./dev and its scripts in configs/dev share. Sourced by bash; afterwards the folder is the repository's root.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."

say() { printf '\033[1m[dev]\033[0m %s\n' "$*" >&2; }
die() { printf '[dev] error: %s\n' "$*" >&2; exit 1; }
die_usage() { printf '[dev] error: %s\n' "$*" >&2; exit 2; }

cache=${ACCEL_CACHE_DIR:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/accel}
export ACCEL_CACHE_DIR=$cache

current_commit() { git describe --always --dirty 2>/dev/null || echo unknown; }

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null; then sudo "$@"
  else die "'$*' needs root; run ./dev as root, or install sudo"; fi
}

packages_of() { sed -e 's/#.*//' -e '/^[[:space:]]*$/d' "configs/packages/$1"; }

install_debian_packages() {  # names
  command -v dpkg-query >/dev/null || die "dpkg-query not found, so this is not a Debian system; install the equivalents of these packages: $*"
  local missing=() name
  for name in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null)" = installed ] || missing+=("$name")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  say "installing ${#missing[@]} Debian packages: ${missing[*]}"
  mkdir -p "$cache"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q >"$cache/apt.log" 2>&1 ||
    { tail -n 5 "$cache/apt.log" >&2; die "apt-get update failed (log: $cache/apt.log); check the network and the apt sources"; }
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" >"$cache/apt.log" 2>&1 ||
    { tail -n 5 "$cache/apt.log" >&2; die "apt-get install failed (log: $cache/apt.log); correct the problem shown above and run the command again"; }
}

# Clang 16 compiles, and its formatter decides how sources look. These distributions lack it.
distribution=$(. /etc/os-release 2>/dev/null && echo "${ID:-}-${VERSION_ID:-}" || true)
case $distribution in
  debian-13) compiler=clang++-19 compiler_package=clang-19 ;;
  ubuntu-22.04) compiler=g++-12 compiler_package=g++-12 ;;
  *) compiler=clang++-16 compiler_package=clang-16 ;;
esac

install_test_packages() {
  [[ $distribution != ubuntu-* ]] || die "the tests need Debian 12 or 13, because Ubuntu has no package of Chromium; on $distribution there are ./dev build and ./dev sim"
  # shellcheck disable=SC2046  # one word a package
  install_debian_packages $(packages_of debian-test.txt) $([ "$compiler" != clang++-16 ] || echo clang-format-16 clang-tidy-16)
}

# A new list of packages gets a new folder, so that a checkout of an older commit still finds its own versions.
stamp_of() { packages_of "$1" | sha256sum | cut -c 1-12; }

need_disk() {  # what, KiB
  local free_kib
  mkdir -p "$cache"
  free_kib=$(df -Pk "$cache" | awk 'NR == 2 { print $4 }')
  [ "$free_kib" -gt "$2" ] || die "$cache has $((free_kib / 1024)) MiB free, but $1 needs $(($2 / 1024)) MiB; set ACCEL_CACHE_DIR to a folder on a larger disk"
}

# Downloads the wheels of one list of packages and verifies their sha256.
download_wheels() {  # list, folder
  python3 -m pip download --require-hashes --no-deps -r "$1" -d "$2" \
    --only-binary=:all: --python-version 3.11 --implementation cp --abi cp311 --abi none \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_25_x86_64 \
    --platform manylinux_2_18_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
    --platform manylinux_2_12_x86_64 --platform manylinux2010_x86_64 --platform manylinux1_x86_64 \
    --disable-pip-version-check >&2 ||
    die "download failed; see pip's message above (a wrong checksum, or PyPI cannot be reached)"
}

# Downloads LibTorch and unpacks the parts that the build needs. The folder gets its final name and .complete at the end, so
# that an interrupted download is never mistaken for a complete one.
install_libtorch() {  # lane: cpu | cuda | cpu-2.15
  local lane=$1 list=configs/packages/libtorch-$1.txt root version
  version=$(sed -n 's/^torch==\([0-9.]*\).*/\1/p' "$list")
  root=$cache/libtorch-$lane-$(stamp_of "libtorch-$lane.txt")
  if [ ! -e "$root/.complete" ]; then
    need_disk "LibTorch ($lane)" "$([ "$lane" = cuda ] && echo 12000000 || echo 2500000)"
    say "downloading LibTorch $version ($lane lane, $([ "$lane" = cuda ] && echo 2.6 GB || echo 550 MB)) into $root"
    rm -rf "$root.tmp"; mkdir -p "$root.tmp/wheels"
    download_wheels "$list" "$root.tmp/wheels"
    say "unpacking LibTorch"
    local wheel
    for wheel in "$root.tmp"/wheels/*.whl; do
      case "$lane $(basename "$wheel")" in
        cpu*" torch-"*) unzip -q "$wheel" 'torch/include/*' torch/lib/libtorch_cpu.so torch/lib/libc10.so 'torch/lib/libgomp*' -d "$root.tmp" ;;
        *) unzip -q -o "$wheel" -x '*.dist-info/*' -d "$root.tmp" ;;
      esac || die "unpacking $wheel failed; check that the disk is not full"
    done
    rm -rf "$root.tmp/wheels" "$root"
    mv "$root.tmp" "$root"
    touch "$root/.complete"
  fi
  ln -sfn "$root" "$cache/libtorch-$lane"
}

# CMake, where the distribution's is too old for CMakePresets.json.
install_cmake() {
  local root
  root=$cache/cmake-$(stamp_of cmake.txt)
  if [ ! -e "$root/.complete" ]; then
    say "downloading CMake (27 MB) into $root"
    rm -rf "$root.tmp"; mkdir -p "$root.tmp/wheels"
    download_wheels configs/packages/cmake.txt "$root.tmp/wheels"
    unzip -q "$root.tmp"/wheels/*.whl 'cmake/data/*' -d "$root.tmp" || die "unpacking CMake failed; check that the disk is not full"
    rm -rf "$root.tmp/wheels" "$root"
    mv "$root.tmp" "$root"
    touch "$root/.complete"
  fi
  PATH=$root/cmake/data/bin:$PATH
}

# Apache Arrow's C++ libraries, with their headers, are a part of Python's package pyarrow.
install_arrow() {
  local root
  root=$cache/arrow-$(stamp_of arrow.txt)
  if [ ! -e "$root/.complete" ]; then
    need_disk "Apache Arrow" 300000
    say "downloading Apache Arrow (43 MB) into $root"
    rm -rf "$root.tmp"; mkdir -p "$root.tmp/wheels"
    download_wheels configs/packages/arrow.txt "$root.tmp/wheels"
    unzip -q "$root.tmp"/wheels/*.whl 'pyarrow/include/*' 'pyarrow/libarrow.so.*' 'pyarrow/libparquet.so.*' -d "$root.tmp" ||
      die "unpacking Apache Arrow failed; check that the disk is not full"
    rm -rf "$root.tmp/wheels" "$root"
    mv "$root.tmp" "$root"
    touch "$root/.complete"
  fi
  ln -sfn "$root" "$cache/arrow"
}

# Installs Python's Accelerate in a separate virtual environment. An environment contains absolute paths and cannot be
# moved, so it is created in its final place.
install_oracle() {
  oracle=$cache/oracle-$(stamp_of oracle.txt)
  mkdir -p "$cache"
  ln -sfn "$oracle" "$cache/oracle"  # where `sim-run compare` looks for it
  [ ! -e "$oracle/.complete" ] || return 0
  install_debian_packages python3-venv
  need_disk "Accelerate for Python" 10000000
  say "downloading Accelerate 1.15.0 and torch 2.11.0 for Python (3 GB) into $oracle"
  rm -rf "$oracle"
  /usr/bin/python3 -m venv "$oracle" || die "creating the virtual environment $oracle failed"
  "$oracle/bin/pip" install --require-hashes --no-deps --only-binary=:all: --no-cache-dir --disable-pip-version-check --progress-bar off \
    -r configs/packages/oracle.txt >"$cache/oracle.log" 2>&1 ||
    { tail -n 5 "$cache/oracle.log" >&2; die "pip install failed (log: $cache/oracle.log); check the network and the free disk space"; }
  touch "$oracle/.complete"
}

# Configures the preset clang, whose compile commands need no precompiled header. Nothing is built.
configure_clang() {
  mkdir -p "$cache"
  cmake --preset clang >"$cache/clang.log" 2>&1 || { cat "$cache/clang.log" >&2; die "configuring build/clang failed; see the output of CMake above"; }
}
