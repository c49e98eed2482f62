#!/usr/bin/env bash
# ./dev messages: lists all error messages that the tests provoke in reports/messages.md.
# shellcheck source=configs/dev/common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

# Erases numbers, names in quotes and temporary folders, so that equal messages are listed once.
list_messages() {  # file of lines TYPE<tab>MESSAGE
  printf '# Error messages\n\nThe messages of errors that the tests provoke. Written by `./dev messages`.\n'
  awk -F '\t' '{ count = split($2, problems, /\\n/); for (k = 1; k <= count; ++k) print $1 "\t" problems[k] }' "$1" |
    LC_ALL=C sed -E -e "s#/(tmp|work|root|home|dev/shm)/[^][ :;,')]*#FILE#g" -e "s/'[^']*'/'...'/g" -e 's/0x[0-9a-f]+/N/g' \
      -e 's/[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?/N/g' -e 's/(-?N, ){2,}-?N/N, .../g' -e 's/checksum [0-9a-fN]+; expected [0-9a-fN]+/checksum N; expected N/' \
      -e '/[^ -~\t]/d' -e 's/(\t.{300}).*/\1.../' |
    LC_ALL=C sort -u | awk -F '\t' '$2 != "" && ++count[substr($2, 1, 40)] <= 3 { if ($1 != type) { type = $1; printf "\n## %s\n\n", type } print "- `" $2 "`" }'
}

[ $# -eq 0 ] || die_usage "messages: unknown argument '$1'; messages accepts none"
./dev build release all record_errors
recorded=$PWD/build/messages.tsv
rm -f "$recorded"
say "running the tests"
# Fuzzing and generated cases are left out: their messages quote random bytes.
ACCEL_MESSAGES=$recorded LD_PRELOAD=$PWD/build/release/bin/librecord_errors.so \
  ctest --test-dir build/release -j "$(nproc)" -E 'fuzz|laws|examples' >"$cache/messages.log" 2>&1 ||
  say "some tests failed (log: $cache/messages.log)"
list_messages "$recorded" >reports/messages.md
say "wrote reports/messages.md"
! grep -m 3 -E 'frame #[0-9]+: |most recent call first' "$recorded" >&2 || die "messages contain stack frames of LibTorch; text_of (core/error_text.hpp) removes them"
