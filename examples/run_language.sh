#!/usr/bin/env bash
# run_language.sh TOOL FOLDER LIBRARY: runs the example of a language with its TOOL (rustc, go, luajit, julia) in a
# scratch FOLDER against the LIBRARY, and checks what it prints. Go's, LuaJIT's and Julia's stand in docs/languages.md.
set -euo pipefail
tool=$1 folder=$2 library=$3
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
case " ${CXXFLAGS:-} " in *-fsanitize*)
  echo "skipped: a library with a sanitizer is loaded only by programs that have it too"
  exit 77
  ;;
esac
if ! command -v "$tool" >/dev/null; then
  echo "skipped: no $tool on the PATH"
  exit 77
fi
rm -rf "$folder"
mkdir -p "$folder"
cd "$folder"

# The block of a language in the document.
block() {
  awk -v open='```'"$1" '$0 == "```" { inside = 0 } inside; $0 == open { inside = 1 }' "$root/docs/languages.md"
}

case $tool in
  rustc)
    rustc --edition 2021 -D warnings -o program "$root/examples/dlopen.rs"
    run=(./program)
    ;;
  go)
    block go >main.go
    export HOME=$folder GO111MODULE=off
    go vet main.go
    go build -o program main.go
    run=(./program)
    ;;
  luajit)
    block lua >main.lua
    run=(luajit main.lua)
    ;;
  julia)
    block julia >main.jl
    run=(julia --startup-file=no main.jl)
    ;;
esac

version=$(sed -n 's/^#define FWDMETA_VERSION_\(MAJOR\|MINOR\|PATCH\) //p' "$root/capi/fwdmeta.h" | paste -sd.)
expected="libfwdmeta $version, written for $version; status 3 is INVALID_BATCH"
printed=$(LD_LIBRARY_PATH=$(dirname "$library") "${run[@]}")
echo "$printed"
if [ "$printed" != "$expected" ]; then
  echo "FAILED: expected \"$expected\"" >&2
  exit 1
fi
# With a file that is no library the program says so and fails.
mkdir broken
: >broken/libfwdmeta.so.1
if LD_LIBRARY_PATH=broken "${run[@]}"; then
  echo "FAILED: it ran without the library" >&2
  exit 1
fi
