#!/usr/bin/env bash
# ./dev wheel --check [--torch VERSION]: builds the wheel, installs it as the guide shows, and runs a program on simulated ranks;
# with a version also the tests of the package under that torch.
# shellcheck source=configs/dev/common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

torch=
if [ "${1:-}" = --torch ]; then
  [[ ${2:-} =~ ^2\.[0-9]+$ ]] || die_usage "wheel --check: --torch: expected a version such as 2.8, got '${2:-}'"
  torch=$2
  shift 2
fi
[ $# -eq 0 ] || die_usage "wheel --check: unknown argument '$1'; expected --torch VERSION or nothing"
wheel=$PWD/$(configs/dev/wheel.sh)
install_debian_packages python3-venv binutils
environment=$PWD/build/wheel/check
say "installing the wheel and its dependencies from PyPI (3 GB) into $environment"
rm -rf "$environment"
/usr/bin/python3 -m venv "$environment"
packages=("$wheel")
[ -z "$torch" ] || packages+=("torch==$torch.*" accelerate==1.15.0 pytest)
"$environment/bin/pip" install --no-cache-dir --disable-pip-version-check --progress-bar off "${packages[@]}" >"$environment/pip.log" 2>&1 ||
  { tail -n 5 "$environment/pip.log" >&2; die "pip install ${packages[*]} failed (log: $environment/pip.log); check the network and the free disk space"; }

# A user's Linux has the C library, perhaps of 2018, and nothing else that the wheel may need.
package=$(echo "$environment"/lib/python3*/site-packages/simranks)
problems=0
while read -r file; do
  while read -r library; do
    [[ $library =~ ^(ld-linux-.*|lib(c|m|dl|rt|util|pthread))\.so\.[0-9]$ ]] && continue
    say "${file#"$package/"} needs $library, which not every Linux has"
    problems=1
  done < <(readelf -d "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
  newest=$(objdump -T "$file" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
  [ "$(printf '%s\nGLIBC_2.28\n' "$newest" | sort -V | tail -n 1)" = GLIBC_2.28 ] || { say "${file#"$package/"} needs $newest; expected 2.28 at most"; problems=1; }
done < <(find "$package" -type f \( -name '*.so' -o -path '*/bin/*' \))
[ $problems = 0 ] || die "the wheel does not fit every Linux with glibc 2.28; configs/cmake/Portable.cmake is its toolchain"

say "running a program on 4 simulated ranks"
# Without the variables and outside of the folders of the build.
output=$(cd / && env -i HOME=/tmp PATH="$environment/bin:/usr/bin:/bin" \
  sim-run --ranks 4 -- python "$OLDPWD/tests/backends/python/programs/sums.py") || die "sim-run of the wheel failed; see its message above"
count=$(grep -c 'sum over 4 ranks: 10' <<<"$output") || true
[ "$count" = 4 ] || die "the program printed 'sum over 4 ranks: 10' $count times; expected once per rank. Its output: $output"
if [ -n "$torch" ]; then
  say "running the tests with torch $torch"
  (cd tests/backends/python && "$environment/bin/python" -m pytest -q .) || die "tests fail with torch $torch"
fi
rm -rf "$environment"
say "the wheel works: $wheel"
