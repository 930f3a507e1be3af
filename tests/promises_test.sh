#!/usr/bin/env bash
# promises_test.sh SOURCE_DIR BINARY_DIR: every test that docs/promises.md names exists, in the sources or as an entry of
# CTest, and every case of bugs_test has its row.
set -euo pipefail
source=$1 binary=$2
page=$source/docs/promises.md
failed=0

in_sources=$(grep -rhoE '^TEST(_F|_P)?\([A-Za-z0-9_]+, [A-Za-z0-9_]+\)' "$source/tests" --include='*.cpp' --include='*.cu' |
  sed -E 's/^TEST(_F|_P)?\(([A-Za-z0-9_]+), ([A-Za-z0-9_]+)\)/\2.\3/' | sort -u)
in_ctest=$(ctest --test-dir "$binary" -N | sed -nE 's/^ *Test +#[0-9]+: (.*)$/\1/p')
named=$(grep -E '^\| ' "$page" | sed -E 's/^\| [^|]* \|//' | grep -oE '`[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)?`' | tr -d '`' | sort -u)
[ "$(wc -l <<<"$named")" -gt 100 ] || { echo "the page names too few tests: was it read?"; failed=1; }
for name in $named; do
  case $name in
    *.*) found=$in_sources ;;
    *) found=$in_ctest ;;
  esac
  grep -qxF "$name" <<<"$found" || { echo "docs/promises.md names $name, which is no test"; failed=1; }
done

for number in $(grep -oE '\bB[0-9]{2}(_|\b)' <<<"$in_sources" | tr -d _ | sort -u); do
  grep -qE "^\| ([^|]*, )?$number(,[^|]*)? \|" "$page" || { echo "docs/promises.md has no row for $number"; failed=1; }
done
[ "$failed" -eq 0 ] && echo "$(wc -l <<<"$named") names"
exit "$failed"
