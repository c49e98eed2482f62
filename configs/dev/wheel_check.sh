#!/usr/bin/env bash
# ./dev wheel --check: builds the wheel, installs it as the guide shows, and runs a program on simulated ranks.
# shellcheck source=configs/dev/common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

[ $# -eq 0 ] || die_usage "wheel --check: unknown argument '$1'; --check accepts none"
wheel=$PWD/$(configs/dev/wheel.sh)
install_debian_packages python3-venv binutils
environment=$PWD/build/wheel/check
say "installing the wheel and its dependencies from PyPI (3 GB) into $environment"
rm -rf "$environment"
/usr/bin/python3 -m venv "$environment"
"$environment/bin/pip" install --no-cache-dir --disable-pip-version-check --progress-bar off "$wheel" >"$environment/pip.log" 2>&1 ||
  { tail -n 5 "$environment/pip.log" >&2; die "pip install $wheel failed (log: $environment/pip.log); check the network and the free disk space"; }

# This machine has the libraries that the build needs, and a user's may lack them. So each library that a file of the wheel loads
# must be in the wheel, in torch, or in every Debian.
packages=$(echo "$environment"/lib/python3*/site-packages)
provided=$(find "$packages/accel_sim" "$packages/torch/lib" -name '*.so*' -printf '%f\n')
libraries_of_debian=$(printf '%s\n' ld-linux-x86-64.so.2 lib{c,m}.so.6 libdl.so.2 libutil.so.1 librt.so.1 libpthread.so.0 libgcc_s.so.1 libstdc++.so.6)
problems=0
while read -r file; do
  while read -r library; do
    grep -qxF "$library" <<<"$provided"$'\n'"$libraries_of_debian" && continue
    say "${file#"$packages/"} needs $library, which is neither in the wheel, nor in torch, nor in every Debian"
    problems=1
  done < <(readelf -d "$file" 2>/dev/null | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
done < <(find "$packages/accel_sim" -type f \( -name '*.so*' -o -path '*/bin/*' \))
[ $problems = 0 ] || die "the wheel lacks libraries; backends/python/CMakeLists.txt adds those of sim-run"

say "running a program on 4 simulated ranks"
# Without the variables and outside of the folders of the build.
output=$(cd / && env -i HOME=/tmp PATH="$environment/bin:/usr/bin:/bin" \
  sim-run --ranks 4 -- python "$OLDPWD/tests/backends/python/programs/sums.py") || die "sim-run of the wheel failed; see its message above"
count=$(grep -c 'sum over 4 ranks: 10' <<<"$output") || true
[ "$count" = 4 ] || die "the program printed 'sum over 4 ranks: 10' $count times; expected once per rank. Its output: $output"
rm -rf "$environment"
say "the wheel works: $wheel"
