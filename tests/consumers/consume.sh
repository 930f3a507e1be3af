#!/usr/bin/env bash
# consume.sh WAY: builds and runs the programs of this folder against the library in one of the ways to consume it.
# From the environment: FWDMETA_SOURCE_DIR, FWDMETA_BINARY_DIR, SCRATCH (a folder for all ways), LIBDIR, CMAKE, CPACK,
# and the compilers and flags as CMake takes them (CC, CXX, CFLAGS, CXXFLAGS).
set -euo pipefail
way=$1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
scratch=$SCRATCH/$way
prefix=$SCRATCH/prefix
rm -rf "$scratch"
mkdir -p "$scratch"
# What a user may have set must not lead to another copy of the library.
unset LD_LIBRARY_PATH PKG_CONFIG_PATH PKG_CONFIG_LIBDIR DESTDIR
unset CMAKE_PREFIX_PATH CMAKE_BUILD_TYPE fwdmeta_DIR fwdmeta_ROOT

say() { printf -- '-- %s\n' "$*"; }
die() {
  printf 'FAILED: %s\n' "$*" >&2
  exit 1
}
skip() {
  printf 'skipped: %s\n' "$*"
  exit 77
}
command_version() { "$FWDMETA_BINARY_DIR/src/command/fwdmeta" --version; }
need() { command -v "$1" >/dev/null || skip "no $1 on the PATH"; }
expect() { [ "$2" = "$3" ] || die "$1: expected \"$2\", got \"$3\""; }

# engine FOLDER: a project of its own in the scratch folder, of the programs and the folder's CMakeLists.txt. The
# library stands in it too, for those ways that build it; with ccache the second of them compiles nothing.
export CCACHE_BASEDIR=$scratch CCACHE_NOHASHDIR=1
engine() {
  mkdir -p "$scratch/engine/third_party"
  [ -e "$scratch/engine/third_party/fwdmeta" ] || ln -s "$FWDMETA_SOURCE_DIR" "$scratch/engine/third_party/fwdmeta"
  cp "$here/$1/CMakeLists.txt" "$here/main.c" "$here/main.cpp" "$FWDMETA_SOURCE_DIR/examples/dlopen.c" "$scratch/engine"
}
configure() { "$CMAKE" -S "$scratch/engine" -B "$scratch/build" -DFWDMETA_CONSUMERS_DIR="$here" "$@"; }
build_and_run() {
  "$CMAKE" --build "$scratch/build" --parallel 2
  "$scratch/build/engine"
  "$scratch/build/engine_cpp"
}

# with_find_package PREFIX LIBRARY_FOLDER
with_find_package() {
  rm -rf "$scratch/build"
  engine find_package
  configure -DCMAKE_PREFIX_PATH="$1"
  build_and_run
  ! readelf -d "$scratch/build/engine_dlopen" | grep -q 'NEEDED.*fwdmeta' || die "fwdmeta::headers links the library"
  LD_LIBRARY_PATH=$2 "$scratch/build/engine_dlopen"
  LD_LIBRARY_PATH=$2 ldd "$scratch/build/engine" | grep -F "$(realpath "$2")/libfwdmeta.so" ||
    die "engine runs with another libfwdmeta than that of $1"
}

# with_pkg_config LIBRARY_FOLDER
with_pkg_config() {
  need pkg-config
  local -x PKG_CONFIG_PATH=$1/pkgconfig
  local flags libdir
  pkg-config --exists --print-errors 'fwdmeta >= 1.0'
  read -ra flags <<<"$(pkg-config --cflags --libs fwdmeta)"
  libdir=$(pkg-config --variable=libdir fwdmeta)
  expect "pkg-config's folder of the library" "$(realpath "$1")" "$(realpath "$libdir")"
  expect "pkg-config's version" "$(command_version)" "fwdmeta $(pkg-config --modversion fwdmeta)"
  $CC ${CFLAGS:-} "$here/main.c" -o "$scratch/engine_pc" "${flags[@]}" "-Wl,-rpath,$libdir"
  $CXX -std=c++17 ${CXXFLAGS:-} "$here/main.cpp" -o "$scratch/engine_pc_cpp" "${flags[@]}" "-Wl,-rpath,$libdir"
  "$scratch/engine_pc"
  "$scratch/engine_pc_cpp"
}

# Beside another project: an install of that project has nothing of the library, unless it is asked for.
check_install_of_parent() {
  "$CMAKE" --install "$scratch/build" --prefix "$scratch/without" 2>&1
  expect "installed by the project alone" "" "$(find "$scratch/without" -type f 2>/dev/null)"
  configure -DFWDMETA_INSTALL=ON >/dev/null
  "$CMAKE" --build "$scratch/build" --parallel 2
  "$CMAKE" --install "$scratch/build" --prefix "$scratch/with" >/dev/null
  rm -rf "$scratch/build"
  engine find_package
  configure -DCMAKE_PREFIX_PATH="$scratch/with" >/dev/null
  build_and_run
}

lines() { printf '%s\n' "$@" | sort; }
# A field of a package.
field() { dpkg-deb -f "$(echo "$scratch/$1"_*.deb)" "$2"; }

# dpkg in a root of its own, where nothing is installed that a package depends on.
dpkg_here() {
  dpkg --root="$scratch/root" --log="$scratch/dpkg.log" --force-depends --force-not-root --force-bad-path "$@" 2>&1
}

with_debian_packages() {
  need dpkg-deb
  need dpkg-shlibdeps
  case " ${CXXFLAGS:-} " in
    *-fsanitize*) skip "a build with a sanitizer needs its runtime, and makes no package" ;;
  esac
  local soname runtime arch libdir package packages depends number='\(>= [0-9.]+\)'
  soname=$(readelf -d "$FWDMETA_BINARY_DIR/src/libfwdmeta.so" | sed -n 's/.*SONAME.*\[libfwdmeta\.so\.\(.*\)]/\1/p')
  runtime=libfwdmeta$soname
  arch=$(dpkg --print-architecture)
  libdir=usr/lib/$(gcc -print-multiarch)
  "$CPACK" -G DEB --config "$FWDMETA_BINARY_DIR/CPackConfig.cmake" -B "$scratch"
  packages=("$runtime" libfwdmeta-dev fwdmeta)
  [ ! -e "$FWDMETA_BINARY_DIR/src/libfwdmeta_nccl.so.1" ] || packages+=(libfwdmeta-nccl1)
  expect "packages" "$(lines "${packages[@]}")" "$(cd "$scratch" && lines ./*.deb | sed 's|^\./||; s|_.*||')"

  say "what the packages say"
  for package in "${packages[@]}"; do
    expect "architecture of $package" "$arch" "$(field "$package" Architecture)"
    # The log and the command's parsers are headers: none of their packages is needed to run.
    ! field "$package" Depends | grep -E 'spdlog|fmt[0-9]|cli11|nlohmann|cuda' ||
      die "$package depends on what it has inside"
  done
  depends=$(field "$runtime" Depends)
  [[ $depends =~ ^libc6\ $number,\ libstdc\+\+6\ $number$ ]] || die "$runtime depends on $depends"
  depends=$(field fwdmeta Depends)
  for package in libc6 libstdc++6 "$runtime"; do
    [[ ", $depends," == *", $package (>= "* ]] || die "fwdmeta depends on $depends, and not on $package"
  done
  expect "what libfwdmeta-dev needs" "$runtime (= $(field "$runtime" Version))" "$(field libfwdmeta-dev Depends)"
  dpkg-deb -e "$scratch/$runtime"_*.deb "$scratch/control"
  expect "control files of $runtime" "control md5sums shlibs triggers" "$(cd "$scratch/control" && echo *)"
  expect "trigger" "activate-noawait ldconfig" "$(cat "$scratch/control/triggers")"

  say "installing, removing"
  mkdir -p "$scratch/root/var/lib/dpkg/"{info,updates,triggers}
  touch "$scratch/root/var/lib/dpkg/"{status,available}
  dpkg_here -i "$scratch"/*.deb
  expect "installed" "$(lines "${packages[@]}")" \
    "$(dpkg-query --admindir="$scratch/root/var/lib/dpkg" -W -f '${db:Status-Status} ${Package}\n' |
      sed -n 's/^installed //p' | sort)"
  expect "changed since" "" "$(dpkg_here -V)"
  [ -e "$scratch/root/$libdir/libfwdmeta.so.$soname" ] || die "$runtime has its library elsewhere than in $libdir"
  expect "folders that the command asks the loader to search" "" \
    "$(readelf -d "$scratch/root/usr/bin/fwdmeta" | grep -E 'RPATH|RUNPATH' || true)"
  gzip -dc "$scratch/root/usr/share/man/man1/fwdmeta.1.gz" | cmp - "$prefix/share/man/man1/fwdmeta.1"
  dpkg_here -r "${packages[@]}"
  dpkg_here -P "${packages[@]}" >/dev/null
  expect "left behind" "" "$(find "$scratch/root" -path "$scratch/root/var" -prune -o ! -type d -print)"

  say "unpacked"
  for package in "${packages[@]}"; do dpkg-deb -x "$scratch/$package"_*.deb "$scratch/unpacked"; done
  LD_LIBRARY_PATH=$scratch/unpacked/$libdir "$scratch/unpacked/usr/bin/fwdmeta" inspect --backend host \
    "$FWDMETA_SOURCE_DIR/examples/batch.json" >/dev/null
  with_find_package "$scratch/unpacked/usr" "$scratch/unpacked/$libdir"
  with_pkg_config "$scratch/unpacked/$libdir"
}

case $way in
  install)
    rm -rf "$prefix"
    "$CMAKE" --install "$FWDMETA_BINARY_DIR" --prefix "$prefix"
    expect "version of the installed command" "$(command_version)" "$("$prefix/bin/fwdmeta" --version)"
    [ -s "$prefix/share/man/man1/fwdmeta.1" ] || die "no manual page"
    [ -s "$prefix/share/bash-completion/completions/fwdmeta" ] || die "no completion"
    ! grep -rlF -e "$FWDMETA_BINARY_DIR" -e "$FWDMETA_SOURCE_DIR" --include=*.cmake --include=*.pc "$prefix" ||
      die "these files name the build"
    ;;
  find_package) with_find_package "$prefix" "$prefix/$LIBDIR" ;;
  pkg_config) with_pkg_config "$prefix/$LIBDIR" ;;
  moved_prefix)
    "$CMAKE" --install "$FWDMETA_BINARY_DIR" --prefix "$scratch/first" >/dev/null
    mkdir "$scratch/a folder"
    mv "$scratch/first" "$scratch/a folder/second"
    ln -s "a folder/second" "$scratch/second" # pkg-config's flags are words, so its folder has no space in its name
    "$scratch/a folder/second/bin/fwdmeta" inspect --backend host "$FWDMETA_SOURCE_DIR/examples/batch.json" >/dev/null
    with_find_package "$scratch/a folder/second" "$scratch/a folder/second/$LIBDIR"
    with_pkg_config "$scratch/second/$LIBDIR"
    ;;
  add_subdirectory)
    engine add_subdirectory
    configure -DFWDMETA_CUDA=OFF -DFWDMETA_NCCL=OFF
    build_and_run
    check_install_of_parent
    ;;
  fetch_content)
    engine fetch_content
    third_party=$scratch/engine/third_party/fwdmeta
    configure -DFETCHCONTENT_SOURCE_DIR_FWDMETA="$third_party" -DFWDMETA_CUDA=OFF -DFWDMETA_NCCL=OFF
    build_and_run
    ;;
  deb) with_debian_packages ;;
  *) die "no way named $way" ;;
esac
