#!/usr/bin/env bash
# ./dev package [--notes]: writes the archive and the Debian package of a release, or prints what CHANGELOG.md says of it.
# shellcheck source=configs/dev/common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

version=$(sed -n 's/^project(accel VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
case ${1:-} in
  '') ;;
  --notes)
    # The section of this version, which is "Unreleased (VERSION)" until a person tags it.
    notes=$(awk -v version="$version" '/^## / { inside = $0 == "## " version || index($0, "(" version ")") > 0; next } inside' CHANGELOG.md)
    [ -n "$notes" ] || die "CHANGELOG.md has no section of version $version"
    echo "$notes"
    exit ;;
  *) die_usage "package: unknown argument '$1'; expected --notes or nothing" ;;
esac

./dev build release
install_debian_packages file  # CPack looks with it for the programs whose libraries become dependencies
folder=build/packages
rm -rf "$folder"
mkdir -p "$folder"
name=accel-$version-$distribution-$(uname -m)
say "packing $name"
# A CPack of a user's own, such as that of Chocolatey, must not be found instead of CMake's.
cpack=$(sed -n 's/^CMAKE_CPACK_COMMAND:INTERNAL=//p' build/release/CMakeCache.txt)
for generator in TGZ DEB; do
  # The archive may be unpacked anywhere. Debian's is installed in /usr.
  prefix=/usr
  [ "$generator" = DEB ] || prefix=/
  "${cpack:-cpack}" -G "$generator" --config build/release/CPackConfig.cmake -B "$folder" -D CPACK_PACKAGE_FILE_NAME="$name" \
    -D CPACK_DEBIAN_FILE_NAME="$name.deb" -D CPACK_PACKAGING_INSTALL_PREFIX="$prefix" >"$folder/cpack.log" 2>&1 ||
    { tail -n 20 "$folder/cpack.log" >&2; die "cpack failed; see its output above"; }
done
rm -rf "$folder/_CPack_Packages" "$folder/cpack.log"
(cd "$folder" && sha256sum -- * >SHA256SUMS-"$distribution")
ls "$folder"/*
