#!/usr/bin/env bash
# ./dev tidy [COMMIT]: prints clang-tidy's findings in at most 20 sources changed since COMMIT.
# shellcheck source=configs/dev/common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

since=${1:-HEAD~1}
git rev-parse --verify --quiet "$since^{commit}" >/dev/null || die_usage "tidy: '$since' is not a commit; expected a commit such as HEAD~3"
mapfile -t changed < <(git diff --name-only --diff-filter=d "$since" -- 'reference/*.cpp' 'backends/*.cpp' 'sim/*.cpp' \
  ':!reference/examples/*' ':!backends/nccl/*' ':!sim/executor/thread_executor.cpp')
if [ ${#changed[@]} -eq 0 ]; then say "no source changed since $since"; exit 0; fi
if [ ${#changed[@]} -gt 20 ]; then
  say "${#changed[@]} sources changed since $since; checking only the first 20"
  changed=("${changed[@]:0:20}")
fi
./dev setup
install_test_packages
configure_clang
say "checking ${#changed[@]} sources"
# clang-tidy 16 crashes in bugprone-unchecked-optional-access, hence its exclusion.
printf '%s\0' "${changed[@]}" | xargs -0 -n 1 -P "$(nproc)" clang-tidy-16 -p build/clang --quiet \
  --checks=-bugprone-unchecked-optional-access --extra-arg=-Wno-unused-command-line-argument || die "a source does not compile; see the errors above"
