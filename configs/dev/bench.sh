#!/usr/bin/env bash
# ./dev bench [--oracle | --against COMMIT [ROWS]]: runs the benchmarks.
# shellcheck source=configs/dev/common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

declare -A script=()
case ${1:-} in
  --against) shift; exec configs/dev/bench_against.sh "$@" ;;
  --oracle)
    shift
    install_oracle
    script=([step]=accelerate_training [loader]=torch_loader [launch]=accelerate_launch [collectives]=threaded_group) ;;
esac
[ $# -eq 0 ] || die_usage "bench: unknown option '$1'; expected --oracle, --against COMMIT or nothing"
./dev build release
mkdir -p reports/results
for name in step loader checkpoint launch collectives; do
  python=()
  if [ -n "${script[$name]:-}" ]; then python=(--python "$(printf %q "$oracle/bin/python") bench/${script[$name]}.py"); fi
  say "running ${name}_bench"
  "build/release/bin/${name}_bench" --out "reports/results/${name}_bench.json" --commit "$(current_commit)" "${python[@]}"
done
