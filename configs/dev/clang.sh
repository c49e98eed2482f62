#!/usr/bin/env bash
# ./dev clang [COMMIT]: compiles the sources changed since COMMIT, and those that include a changed header, with the preset clang.
# shellcheck source=configs/dev/common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

[ $# -le 1 ] || die_usage "clang: got $# arguments; expected at most one, a commit"
since=${1:-HEAD~1}
git rev-parse --verify --quiet "$since^{commit}" >/dev/null || die_usage "clang: '$since' is not a commit; expected a commit such as HEAD~3"
mapfile -t changed < <(git diff --name-only --diff-filter=d "$since" -- '*.cpp' '*.hpp')
if [ ${#changed[@]} -eq 0 ]; then say "no source or header changed since $since"; exit 0; fi
./dev setup
configure_clang
say "${#changed[@]} sources and headers changed since $since"
python3 -B configs/dev/compile_changed.py --build build/clang --jobs "${ACCEL_BUILD_JOBS:-$(nproc)}" "${changed[@]}" ||
  die "a source does not compile without precompiled headers; see the errors above"
