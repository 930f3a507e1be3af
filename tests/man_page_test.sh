#!/usr/bin/env bash
# man_page_test.sh COMMAND FOLDER: the manual page formats without a warning and has every command and option of the
# help.
set -euo pipefail
command=$1 folder=$2
if ! command -v groff >/dev/null; then
  echo "skipped: no groff on the PATH"
  exit 77
fi
rm -rf "$folder"
mkdir -p "$folder"
"$command" man >"$folder/fwdmeta.1"
# Overstrikes, for bold and italic, are taken out.
groff -ww -b -man -Tascii -P-c "$folder/fwdmeta.1" 2>"$folder/warnings" | sed "s/.$(printf '\b')//g" >"$folder/text"

failed=0
fail() {
  printf 'FAILED: %s\n' "$*" >&2
  failed=1
}
[ ! -s "$folder/warnings" ] || fail "groff warns: $(cat "$folder/warnings")"
grep -qx 'FWDMETA(1) .* FWDMETA(1)' "$folder/text" || fail "no title"
grep -qF "$("$command" --version)" "$folder/text" || fail "the footer lacks $("$command" --version)"
grep -qE '^ +fwdmeta - ' "$folder/text" || fail "no name line, by which man -k finds the page"
! awk 'length > 80' "$folder/text" | grep . || fail "these lines are longer than 80 columns"

# The lines of a subcommand's section.
section() { awk -v head="   $1" '$0 == head { inside = 1; next } /^(   )?[^ ]/ { inside = 0 } inside' "$folder/text"; }
subcommands=$("$command" --help | sed -n '/^Subcommands:/,$ s/^  \([a-z]\+\) .*/\1/p')
[ -n "$subcommands" ] || fail "no subcommand in the help"
for subcommand in $subcommands; do
  for option in $("$command" "$subcommand" --help | sed -n 's/^  \(-[^ ]*\).*/\1/p' | tr ',' ' '); do
    section "$subcommand" | grep -qE "^ +(-h, )?$option( |\$)|^ +$option, " || fail "$subcommand lacks $option"
  done
done
section inspect | grep -qF -- '--format json|table' || fail "inspect lacks the values of --format"
exit "$failed"
