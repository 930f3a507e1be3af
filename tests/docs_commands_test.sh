#!/usr/bin/env bash
# docs_commands_test.sh SOURCE_DIR BINARY_DIR FOLDER: runs the `sh` blocks of README.md and docs/install.md, in their
# order, in a copy of the sources and with a home of its own. `<!-- test: COMMAND -->` is run too: it makes what the
# reader has.
set -euo pipefail
source=$1 binary=$2 folder=$3
rm -rf "$folder"
mkdir -p "$folder"/{home,bin,sources,root/var/lib/dpkg/{info,updates,triggers}}
touch "$folder"/root/var/lib/dpkg/{status,available}
tar -C "$source" -cf - --anchored --exclude='./build*' --exclude=./.git \
  --exclude="./$(realpath --relative-to="$source" "$binary")" . | tar -C "$folder/sources" -xf -

unset LD_LIBRARY_PATH PKG_CONFIG_PATH CMAKE_PREFIX_PATH CMAKE_GENERATOR DESTDIR CC CXX CFLAGS CXXFLAGS
if command -v ccache >/dev/null; then
  CCACHE_DIR=$(ccache --get-config cache_dir) # of the real home: what the sources' own build has left there
  export CCACHE_DIR
fi
export HOME=$folder/home PATH=$folder/bin:$PATH
export FWDMETA_CUDA=OFF # a third of the time; the commands are the same
# Who is not root becomes it here, and dpkg acts on a root of its own, which lacks all that a package depends on.
printf '#!/bin/sh\nexec "$@"\n' >"$folder/bin/sudo"
printf '#!/bin/sh\nexec %s --root=%q --log=%q --force-depends --force-not-root --force-bad-path "$@"\n' \
  "$(command -v dpkg || echo dpkg)" "$folder/root" "$folder/dpkg.log" >"$folder/bin/dpkg"
chmod +x "$folder"/bin/*

# The commands of a document, a block to a file. ./test.sh is what runs this.
blocks() {
  awk -v out="$2" '
    /^<!-- test: .* -->$/ { sub(/^<!-- test: /, ""); sub(/ -->$/, ""); print > (out "." sprintf("%02d", ++n)); next }
    /^ *```sh$/ { inside = 1; file = out "." sprintf("%02d", ++n); next }
    /^ *```$/ { inside = 0 }
    inside && !/^\.\/test\.sh( |$)/ { print > file }' "$1"
}

count=0
for document in README.md docs/install.md; do
  blocks "$source/$document" "$folder/$(basename "$document")"
  for block in "$folder/$(basename "$document")".*; do
    printf '\n== %s\n%s\n' "$document" "$(cat "$block")"
    (cd "$folder/sources" && bash -euo pipefail "$block") || {
      echo "FAILED: the commands above, of $document" >&2
      exit 1
    }
    count=$((count + 1))
  done
done
[ "$count" -ge 10 ] || {
  echo "FAILED: only $count blocks of commands were found" >&2
  exit 1
}
left=$(find "$folder/root" -path "$folder/root/var" -prune -o ! -type d -print)
[ -z "$left" ] || {
  echo "FAILED: left by the packages: $left" >&2
  exit 1
}
