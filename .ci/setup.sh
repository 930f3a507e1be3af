# Sourced by demo.sh, test.sh and the scripts here: installs what is missing, finds the CUDA compiler, configures and
# builds into build/, or where $build says.
# Environment: FWDMETA_CUDA=OFF leaves the CUDA backend out even where nvcc is; FWDMETA_WERROR=ON makes warnings errors;
# JOBS sets the number of parallel jobs.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build
jobs=${JOBS:-$(nproc)}
# With ccache: what one copy of the sources has compiled serves another, as that which the tests make.
export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1

say() { printf '== %s\n' "$*"; }
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# The part of a package that the build uses, so that a tool or header from elsewhere counts as well.
have() {
  case $1 in
    build-essential) command -v cc && command -v c++ ;;
    cmake) command -v cmake ;;
    ninja-build) command -v ninja ;;
    libspdlog-dev) have_header spdlog/spdlog.h ;;
    libcli11-dev) have_header CLI/CLI.hpp ;;
    nlohmann-json3-dev) have_header nlohmann/json.hpp ;;
    libgtest-dev) have_header gtest/gtest.h ;;
    libbenchmark-dev) have_header benchmark/benchmark.h ;;
    ccache) command -v ccache ;;
    pkg-config) command -v pkg-config ;;
    groff-base) command -v groff ;;
    *) dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null | grep -qx installed ;;
  esac >/dev/null
}
have_header() { [ -e "/usr/include/$1" ] || [ -e "/usr/local/include/$1" ]; }

# ensure_packages PACKAGE...: asks apt for those that are missing, and for nothing where none is.
ensure_packages() {
  local missing=() package as_root=()
  for package in "$@"; do have "$package" || missing+=("$package"); done
  if [ ${#missing[@]} -eq 0 ]; then
    say "packages: all there"
    return
  fi
  local by_hand="apt-get update && apt-get install ${missing[*]}"
  command -v apt-get >/dev/null || die "missing: ${missing[*]} (Debian names), and there is no apt-get to install them"
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || die "missing: ${missing[*]}. Not root and no sudo; as root: $by_hand"
    as_root=(sudo)
  fi
  say "installing through apt: ${missing[*]}"
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=3 -o Dpkg::Use-Pty=0)
  "${apt[@]}" update || say "apt-get update failed; going on with the package lists that are here"
  "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >/dev/null ||
    die "apt could not install ${missing[*]}. Are the package lists old, or the mirror out of reach? By hand: $by_hand"
}

# The CUDA compiler that works here, or nothing.
find_nvcc() {
  local nvcc
  for nvcc in "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc; do
    if [ -n "$nvcc" ] && "$nvcc" --version >/dev/null 2>&1; then
      printf '%s\n' "$nvcc"
      return
    fi
  done
}

# configure CMAKE_ARGUMENT...
configure() {
  local args=(-S "$root" -B "$build" -G Ninja "-DFWDMETA_WERROR=${FWDMETA_WERROR:-OFF}" "$@") nvcc='' cache=$build/CMakeCache.txt
  [ "${FWDMETA_CUDA:-AUTO}" = OFF ] || nvcc=$(find_nvcc)
  if [ -n "$nvcc" ]; then
    say "CUDA compiler: $nvcc"
    args+=(-DFWDMETA_CUDA=ON "-DCMAKE_CUDA_COMPILER=$nvcc")
  else
    say "no CUDA compiler: the host backend alone"
    args+=(-DFWDMETA_CUDA=OFF)
  fi
  if command -v ccache >/dev/null; then
    args+=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_CUDA_COMPILER_LAUNCHER=ccache)
  fi
  # A build folder that was moved here or made by another generator cannot be configured again.
  if [ -e "$cache" ] && ! { grep -qxF "CMAKE_GENERATOR:INTERNAL=Ninja" "$cache" &&
    grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$cache"; }; then
    say "${build##*/}/ is from another place or generator: configuring afresh"
    args+=(--fresh)
  fi
  say "configuring ${build##*/}/"
  cmake "${args[@]}" || die "configuring failed${nvcc:+; FWDMETA_CUDA=OFF $0 builds without $nvcc}"
}

# compile CMAKE_BUILD_ARGUMENT...
compile() {
  say "building with $jobs jobs"
  cmake --build "$build" --parallel "$jobs" "$@"
}
