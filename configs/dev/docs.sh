#!/usr/bin/env bash
# ./dev docs: writes the API reference of the public headers to build/docs/html.
# shellcheck source=configs/dev/common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

[ $# -eq 0 ] || die_usage "docs: unknown argument '$1'; docs accepts none"
# shellcheck disable=SC2046  # one word a package
install_debian_packages $(packages_of debian-docs.txt)
headers=$(cmake -P configs/cmake/PublicHeaders.cmake)
say "documenting $(wc -l <<<"$headers") public headers"
mkdir -p build/docs
rm -rf build/docs/html
ACCEL_PUBLIC_HEADERS=${headers//$'\n'/ } doxygen configs/docs/Doxyfile >&2 ||
  die "doxygen reports the problems above; correct the comments they name"
say "wrote build/docs/html/index.html"
