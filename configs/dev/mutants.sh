#!/usr/bin/env bash
# ./dev mutants: builds the library with each fault of properties/mutants and runs the tests that should notice it.
# shellcheck source=configs/dev/common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

case " $* " in
  *" --list "* | *" --help "* | *" -h "*) ;;
  *) ./dev build release accel_core ;;  # configures the build, and compiles the precompiled header that --check needs
esac
exec python3 -B properties/mutants/run_mutants.py "$@"
