#!/usr/bin/env bash
# ./dev bench --against COMMIT [ROWS]: compares the benchmarks of the working tree with those of a commit.
# shellcheck source=configs/dev/common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

# Builds COMMIT in a worktree that all comparisons share: another commit then rebuilds only what differs. Both sides are
# built by the commands of this working tree and run its benchmarks, so that they measure the same and only the library differs.
[ $# -ge 1 ] && [ $# -le 2 ] || die_usage "bench --against: got $# arguments; expected COMMIT and optionally a regular expression for rows"
source=build/against/source
commit=$(git rev-parse --verify --quiet "$1^{commit}") || die_usage "bench --against: '$1' is not a commit; expected a commit such as HEAD~1"
echo | grep -qE -e "${2:-.}" 2>/dev/null || [ $? -eq 1 ] ||
  die_usage "bench --against: '$2' is not a regular expression; expected a part of a name such as step/mlp"
install_debian_packages python3-scipy
./dev build release bench_against
say "checking out ${commit:0:12} in $source"
if [ -e "$source/.git" ]; then
  git -C "$source" checkout --quiet --force --detach "$commit"
else
  git worktree prune
  git worktree add --quiet --force --detach "$source" "$commit"
fi || die "git cannot check out $commit in $source; see its message above, or remove $source"
rm -rf "$source/bench" "$source/configs/dev"
cp -a bench dev "$source"
cp -a configs/dev "$source/configs"
"$source/dev" build release bench_against ||
  die "the benchmarks of the working tree do not build against $1; compare with a commit whose interfaces they use"
/usr/bin/python3 -B bench/against/bench_against.py --before "$source/build/release/bin" --after build/release/bin --before-commit "$1" \
  --after-commit "$(current_commit)" --out build/against/comparison.json ${2:+--rows "$2"}
