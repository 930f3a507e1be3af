#!/usr/bin/env bash
# What is built for release: symbols bound when it is loaded and read-only from then on, no executable stack, no
# relocated code, and for the command any address. libfwdmeta needs no CUDA library.
# Usage: hardening_test.sh LIBRARY COMMAND_OR_- PLUGIN_OR_-
set -euo pipefail
export LC_ALL=C
failed=0
complain() {
  echo "$1: $2"
  failed=1
}

# has FILE WHAT READELF_OPTION PATTERN
has() { readelf -W "$3" "$1" | grep -qE "$4" || complain "$1" "$2"; }
lacks() { ! readelf -W "$3" "$1" | grep -E "$4" || complain "$1" "$2"; }

for file in "$@"; do
  [ "$file" != - ] || continue
  has "$file" "symbols are bound when they are first called" -d 'FLAGS.*(BIND_NOW|NOW)'
  has "$file" "relocated data stays writable" -l '^ *GNU_RELRO'
  has "$file" "no word on the stack" -l '^ *GNU_STACK'
  lacks "$file" "an executable stack" -l '^ *GNU_STACK.* RWE'
  lacks "$file" "code that is relocated" -d 'TEXTREL'
done
[ "$2" = - ] || has "$2" "loaded at one address alone" -h 'Type: *DYN'
lacks "$1" "needs a CUDA library" -d 'NEEDED.*(cuda|nccl|nvrtc|cublas)'
exit $failed
