#!/usr/bin/env bash
# ./dev wheel [--check]: builds the Python package accel_sim and prints the path of its wheel.
# shellcheck source=configs/dev/common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

# Adds what the Python package needs to the environment of Python's Accelerate.
install_python_packages() {
  install_oracle
  local stamp
  stamp=$oracle/.python-$(stamp_of python.txt)
  [ ! -e "$stamp" ] || return 0
  "$oracle/bin/pip" install --require-hashes --no-deps --only-binary=:all: --no-cache-dir --disable-pip-version-check --progress-bar off \
    -r configs/packages/python.txt >"$cache/python.log" 2>&1 ||
    { tail -n 5 "$cache/python.log" >&2; die "pip install failed (log: $cache/python.log); check the network"; }
  touch "$stamp"
}

case ${1:-} in
  --check) shift; exec configs/dev/wheel_check.sh "$@" ;;
  ?*) die_usage "wheel: unknown argument '$1'; expected --check or nothing" ;;
esac
install_python_packages
./dev build release sim_run
rm -rf build/wheel/dist
mkdir -p build/wheel
# Built in the environment itself, so that pip downloads no second torch.
PATH=$oracle/bin:$PATH CMAKE_CXX_COMPILER_LAUNCHER=ccache "$oracle/bin/pip" wheel backends/python --no-deps --no-build-isolation --no-index \
  --disable-pip-version-check -w build/wheel/dist --config-settings=cmake.define.ACCEL_SIM_RUN="$PWD/build/release/bin/sim-run" \
  >build/wheel/log 2>&1 || { tail -n 30 build/wheel/log >&2; die "the wheel failed (log: build/wheel/log)"; }
wheel=$(echo build/wheel/dist/accel_sim-*.whl)
say "built $wheel"
echo "$wheel"
