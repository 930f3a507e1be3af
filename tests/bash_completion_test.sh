#!/usr/bin/env bash
# bash_completion_test.sh COMMAND FOLDER: what bash offers for the words of a line, and what a line becomes by TAB.
set -euo pipefail
command=$1 folder=$2
rm -rf "$folder"
mkdir -p "$folder"
"$command" completion bash >"$folder/completion"
bash -n "$folder/completion"
. "$folder/completion"

failed=0
expect() {
  [ "$2" = "$3" ] && return
  printf 'FAILED: %s: expected "%s", got "%s"\n' "$1" "$2" "$3" >&2
  failed=1
}
# offered WORD...: the replies for the last word of the line.
offered() {
  COMP_WORDS=(fwdmeta "$@") COMP_CWORD=$# COMPREPLY=()
  _fwdmeta fwdmeta "${!#}" "${COMP_WORDS[COMP_CWORD - 1]}" || true
  echo "${COMPREPLY[*]}"
}
# The options in the help of a command: "-h,--help" is two.
options_of() { "$command" "$@" --help | sed -n 's/^  \(-[^ ]*\).*/\1/p' | tr ',' '\n' | sort; }
sorted() { tr ' ' '\n' | sort; }

subcommands=$("$command" --help | sed -n '/^Subcommands:/,$ s/^  \([a-z]\+\) .*/\1/p')
expect "subcommands in the help" 1 "$((${#subcommands} > 0))"
expect "the first word" "$({ echo "$subcommands"; options_of; } | sort)" "$(offered "" | sorted)"
for subcommand in $subcommands; do
  expect "options of $subcommand" "$(options_of "$subcommand")" "$(offered "$subcommand" - | sorted)"
done
expect "a word that is begun" "inspect" "$(offered in)"
expect "options that are begun" "--format --full" "$(offered inspect --f)"
expect "values" "auto host cuda" "$(offered replay --backend "")"
expect "a value that is begun" "table" "$(offered inspect batch.json --format t)"
expect "values behind an equals sign" "auto host cuda" "$(offered inspect --backend =)"
expect "a value behind an equals sign" "host" "$(offered inspect --backend = h)"
expect "after a value" "--check --chunk" "$(offered replay --max-batch 4 --ch | sorted | xargs)"
expect "a number" "" "$(offered replay --max-batch "")"
expect "a file" "" "$(offered inspect "")"
expect "a command that there is not" "" "$(offered frobnicate "")"

# What readline makes of a line, on a terminal that `script` opens. The command here prints its arguments.
if command -v script >/dev/null; then
  touch "$folder/a batch.json"
  cat >"$folder/rc" <<'RC'
PS1='$ '
bind 'set bell-style none'
. ./completion
fwdmeta() { printf '<%s>' "$@" >>arguments; }
RC
  (cd "$folder" && printf 'fwdmeta rep\t--bac\thos\t --max-batch 3 a\\ b\t\nexit\n' |
    script -qec "bash --noprofile --rcfile rc -i" terminal >/dev/null) || true
  expect "a line with TAB" "<replay><--backend><host><--max-batch><3><a batch.json>" \
    "$(cat "$folder/arguments" 2>/dev/null || cat "$folder/terminal")"
else
  echo "no test of TAB on a terminal: no script(1) on the PATH"
fi
exit "$failed"
