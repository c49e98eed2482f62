#!/usr/bin/env bash
# ./dev report: writes one HTML page about tests, mutants, benchmarks and differences.
# shellcheck source=configs/dev/common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

# Writes the versions of the benchmarks' files that git has, as COMMIT-NAME. Without git the page shows no history.
extract_earlier_benchmarks() {  # folder
  local commit file
  rm -rf "$1"
  mkdir -p "$1"
  git log --format=%h -- 'reports/results/*_bench.json' 2>/dev/null | while read -r commit; do
    git diff-tree --root --no-commit-id --name-only -r --diff-filter=d "$commit" -- 'reports/results/*_bench.json' |
      while read -r file; do git show "$commit:$file" >"$1/$commit-${file##*/}"; done
  done || true
}

[ $# -eq 0 ] || die_usage "report: unknown argument '$1'; report accepts none"
artifacts=${ACCEL_ARTIFACTS:-build/artifacts}
install_debian_packages python3-jinja2
mkdir -p "$artifacts"
extract_earlier_benchmarks build/earlier_benchmarks
/usr/bin/python3 -B reports/page/write_page.py --artifacts "$artifacts" --history build/earlier_benchmarks \
  --commit "$(current_commit)" --out "$artifacts/report.html"
say "wrote $artifacts/report.html"
