#!/usr/bin/env bash
# ./dev wheel [--check] [--machine NAME]: builds the Python package simranks and prints the path of its wheel.
# shellcheck source=configs/dev/common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

machine=x86_64
while [ $# -gt 0 ]; do
  case $1 in
    --check) shift; exec configs/dev/wheel_check.sh "$@" ;;
    --machine)
      [[ $# -gt 1 && " x86_64 aarch64 " == *" $2 "* ]] || die_usage "wheel: --machine: unknown name '${2:-}'; expected x86_64 or aarch64"
      machine=$2; shift 2 ;;
    *) die_usage "wheel: unknown argument '$1'; expected --check, --machine NAME or nothing" ;;
  esac
done

# A C++ compiler for the glibc of 2018, and pip's build: from PyPI, 120 MB.
install_tools() {
  tools=$cache/wheel-tools-$(stamp_of wheel.txt)
  [ ! -e "$tools/.complete" ] || return 0
  install_debian_packages python3-venv
  say "installing Zig and scikit-build-core into $tools"
  rm -rf "$tools"
  python3 -m venv "$tools" || die "creating the virtual environment $tools failed"
  "$tools/bin/pip" install --require-hashes --no-deps --only-binary=:all: --no-cache-dir --disable-pip-version-check --progress-bar off \
    -r configs/packages/wheel.txt >"$cache/wheel-tools.log" 2>&1 ||
    { tail -n 5 "$cache/wheel-tools.log" >&2; die "pip install failed (log: $cache/wheel-tools.log); check the network"; }
  touch "$tools/.complete"
}

# Programs as CMake wants them: without arguments of their own.
write_compilers() {
  local zig name
  zig=$(echo "$tools"/lib/python3*/site-packages/ziglang/zig)
  export ACCEL_PORTABLE_TOOLS=$tools/$machine
  mkdir -p "$ACCEL_PORTABLE_TOOLS"
  for name in cc c++; do printf '#!/bin/sh\nexec "%s" %s -target %s-linux-gnu.2.28 "$@"\n' "$zig" $name "$machine"; done |
    split -l 2 - "$ACCEL_PORTABLE_TOOLS/compiler-"
  mv "$ACCEL_PORTABLE_TOOLS/compiler-aa" "$ACCEL_PORTABLE_TOOLS/cc"
  mv "$ACCEL_PORTABLE_TOOLS/compiler-ab" "$ACCEL_PORTABLE_TOOLS/c++"
  for name in ar ranlib; do printf '#!/bin/sh\nexec "%s" %s "$@"\n' "$zig" $name >"$ACCEL_PORTABLE_TOOLS/$name"; done
  chmod +x "$ACCEL_PORTABLE_TOOLS"/*
  export CCACHE_COMPILERTYPE=clang ZIG_GLOBAL_CACHE_DIR=$cache/zig ZIG_LOCAL_CACHE_DIR=$cache/zig
}

# Debian's sources of a package; only this script needs them, so apt's own lists stay as they are.
download_source() {  # package, folder
  local apt=(-o "Dir::Etc::SourceList=/dev/null" -o "Dir::Etc::SourceParts=$2/parts" -o "Dir::State::Lists=$2/lists" -o APT::Sandbox::User=root)
  if [ ! -d "$2/lists" ]; then
    mkdir -p "$2/parts" "$2/lists/partial"
    apt-get indextargets --format 'deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(REPO_URI) $(CODENAME) main' 'Created-By: Packages' 'Origin: Debian' |
      grep -v -e -security -e -updates | sort -u >"$2/parts/sources.list"
    apt-get "${apt[@]}" update -q >"$2/log" 2>&1 || { tail -n 5 "$2/log" >&2; die "the lists of Debian's sources could not be read; check the network and the apt sources"; }
  fi
  (cd "$2" && apt-get "${apt[@]}" source -q --download-only "$1" >"$2/log" 2>&1 && mkdir "$1" && tar xf "$1"_*.orig.tar.?z -C "$1" --strip-components 1) ||
    { tail -n 5 "$2/log" >&2; die "Debian's source of $1 could not be read; check the network"; }
}

# What sim-run links beside the C library, for the old glibc and the machine.
install_libraries() {
  export ACCEL_PORTABLE_LIBRARIES=$cache/wheel-libraries-$machine-$(stamp_of wheel.txt)
  local prefix=$ACCEL_PORTABLE_LIBRARIES/usr sources name
  [ ! -e "$prefix/.complete" ] || return 0
  say "building yaml-cpp and libmd for $machine"
  install_debian_packages dpkg-dev xz-utils
  rm -rf "$ACCEL_PORTABLE_LIBRARIES"
  mkdir -p "$prefix/include" "$prefix/lib" "$prefix/share/cmake"
  for name in CLI nlohmann protozero; do ln -s "/usr/include/$name" "$prefix/include/"; done
  for name in CLI11 nlohmann_json; do cp -r "/usr/share/cmake/$name" "$prefix/share/cmake/"; done
  sources=$(mktemp -d)
  download_source yaml-cpp "$sources"
  download_source libmd "$sources"
  { cmake -S "$sources/yaml-cpp" -B "$sources/build" -G Ninja -DCMAKE_TOOLCHAIN_FILE="$PWD/configs/cmake/Portable.cmake" -DCMAKE_BUILD_TYPE=Release \
      -DYAML_CPP_BUILD_TESTS=OFF -DYAML_CPP_BUILD_TOOLS=OFF -DCMAKE_INSTALL_PREFIX="$prefix" -DCMAKE_CXX_FLAGS=-w &&
      cmake --build "$sources/build" --target install; } >"$sources/log" 2>&1 || { tail -n 20 "$sources/log" >&2; die "yaml-cpp did not compile"; }
  touch "$sources/config.h"
  "$ACCEL_PORTABLE_TOOLS/cc" -O2 -w -include stddef.h -I"$sources" -I"$sources/libmd/include" -I"$sources/libmd/src" -c "$sources/libmd/src/sha2.c" -o "$sources/sha2.o" &&
    "$ACCEL_PORTABLE_TOOLS/ar" rcs "$prefix/lib/libmd.a" "$sources/sha2.o" || die "libmd did not compile"
  cp "$sources/libmd/include/sha2.h" "$prefix/include/"
  rm -rf "$sources"
  touch "$prefix/.complete"
}

./dev setup
export ACCEL_MACHINE=$machine
install_tools
write_compilers
install_libraries
folder=build/wheel/$machine
rm -rf build/wheel/dist/*"$machine".whl "$folder/dist"
mkdir -p "$folder" build/wheel/dist
say "building the package for $machine"
PATH=$tools/bin:$PATH CMAKE_TOOLCHAIN_FILE=$PWD/configs/cmake/Portable.cmake CMAKE_GENERATOR=Ninja \
  "$tools/bin/pip" wheel ./backends/python --no-deps --no-build-isolation --no-index --disable-pip-version-check -w "$folder/dist" \
  --config-settings=build-dir="$PWD/$folder/build" >"$folder/log" 2>&1 || { tail -n 30 "$folder/log" >&2; die "the wheel failed (log: $folder/log)"; }
# Of this machine by scikit-build-core's name, but of every Linux with that glibc by its compiler.
(cd "$folder/dist" && "$tools/bin/python" -m wheel tags --remove --python-tag py3 --abi-tag none --platform-tag "manylinux_2_28_$machine" ./*.whl >/dev/null) ||
  die "the wheel could not be renamed"
mv "$folder"/dist/*.whl build/wheel/dist/
wheel=$(echo build/wheel/dist/simranks-*"$machine".whl)
say "built $wheel"
echo "$wheel"
