#!/usr/bin/env bash
# ./dev fuzz [SECONDS] [TARGET...]: runs the fuzzers of properties/fuzz, each for SECONDS.
# shellcheck source=configs/dev/common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

seconds=600
if [[ ${1:-} =~ ^[0-9]+$ ]]; then seconds=$1; shift; fi
[ "$seconds" -gt 0 ] || die_usage "fuzz: 0 seconds per target; expected at least 1"
corpora=properties/fuzz/corpus  # has one folder per target
mapfile -t known < <(cd "$corpora" && printf '%s\n' */ | tr -d /)
for target in "$@"; do
  [[ " ${known[*]} " == *" $target "* ]] || die_usage "fuzz: unknown target '$target'; expected one of: ${known[*]}"
done
[ $# -gt 0 ] || set -- "${known[@]}"
./dev build fuzz "${@/%/_fuzzer}"
artifacts=${ACCEL_ARTIFACTS:-build/artifacts}/fuzz
rm -rf "$artifacts"
mkdir -p "$artifacts"
artifacts=$(realpath "$artifacts")

# Runs one fuzzer and prints a line about it. Its log, and the input that it fails for, are then in $artifacts. New inputs
# stay in build/fuzz/corpus, so that the next run continues with them.
fuzz() {  # target
  local status=0 corpus=build/fuzz/corpus/$1 log=$artifacts/$1.log result='no fault' executions edges inputs
  mkdir -p "$corpus"
  tar -xzf "$corpora/$1.tar.gz" -C "$corpus" --skip-old-files
  # The program limits the time and memory per input (properties/fuzz/fuzzer.cpp). `timeout` ends one that is stuck.
  timeout --foreground --kill-after=10 $((seconds + 300)) "build/fuzz/bin/$1-fuzzer" -max_total_time="$seconds" \
    -print_final_stats=1 -artifact_prefix="$artifacts/$1-" "$corpus" "$corpora/$1" >"$log" 2>&1 || status=$?
  executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  edges=$(sed -n 's/^#.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)
  if [ "$status" != 0 ]; then
    inputs=$(find "$artifacts" -name "$1-*" | sort | tr '\n' ' ')
    result="fault: ${inputs:-no input, exit code $status }(log: $log)"
  fi
  printf '%-13s %11s executions %6s edges  %s\n' "$1" "${executions:-?}" "${edges:-?}" "$result"
  return "$status"
}
export -f fuzz
export seconds corpora artifacts OMP_NUM_THREADS=1 LSAN_OPTIONS="print_suppressions=0:suppressions=$PWD/configs/leaks_of_libraries.txt"

# On half of the processors, because the limit per input is a wall time.
jobs=$((($(nproc) + 1) / 2))
say "running $# fuzzers for $seconds s each, $jobs at once"
status=0
printf '%s\0' "$@" | xargs -0 -n 1 -P "$jobs" bash -euo pipefail -c 'fuzz "$1"' fuzz | tee "$artifacts/results.txt" || status=1
[ $status = 0 ] || die "a fuzzer found a fault; 'build/fuzz/bin/TARGET-fuzzer FILE' repeats it with a file from $artifacts"
