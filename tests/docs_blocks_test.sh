#!/usr/bin/env bash
# docs_blocks_test.sh SOURCE_DIR FOLDER LIBRARY_DIR LANGUAGES COMPILER...: compiles the fenced blocks of README.md and docs/ in
# the LANGUAGES (comma-separated: c, cpp, cuda), each with its COMPILER, in the same order, and with CFLAGS and CXXFLAGS.
#
# A block whose first line is an #include is a file of its own. One with a main() is also linked and run, and where the
# page's next block is `text`, that has to be what it prints. All other blocks of a language on a page are, in their order,
# one piece of code behind docs_blocks/PAGE.LANGUAGE.head, which declares what the page takes as given and opens a function.
set -euo pipefail
source=$1 folder=$2 library=$3
IFS=, read -ra languages <<<"$4"
compilers=("${@:5}")
rm -rf "$folder"
mkdir -p "$folder"
cd "$source"

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# The blocks of a page, each in a file PAGE.NUMBER.LANGUAGE, and the `text` behind NUMBER in PAGE.NUMBER.expected. A file of
# its own begins with a line that says where it stands; so does a piece.
split() {
  awk -v page="$1" -v out="$2" -v languages=",$3," '
    /^```[a-z]+$/ && !inside {
      language = substr($0, 4)
      inside = 1
      file = ""
      if (index(languages, "," language ",")) {
        file = sprintf("%s.%02d.%s", out, ++n, language)
        print "#line " NR + 1 " \"" page "\"" > file
        last = out "." sprintf("%02d", n)
      } else if (language == "text" && last != "") {
        file = last ".expected"
        last = ""
      } else {
        last = ""
      }
      next
    }
    /^```$/ { inside = 0; file = ""; next }
    inside && file != "" { print > file }' "$1"
}

is_unit() { sed -n 2p "$1" | grep -q '^#include'; }

# compile LANGUAGE FILE ARGUMENT...
compile() {
  local language=$1 file=$2 i
  shift 2
  for i in "${!languages[@]}"; do
    [ "${languages[$i]}" = "$language" ] || continue
    case $language in
      c) "${compilers[$i]}" ${CFLAGS:-} -x c -std=c11 -Wall -Wextra -Werror -Icapi -Iinclude "$file" "$@" ;;
      cpp) "${compilers[$i]}" ${CXXFLAGS:-} -x c++ -std=c++17 -Wall -Wextra -Werror -Icapi -Iinclude "$file" "$@" ;;
      cuda) "${compilers[$i]}" -x cu -std=c++17 -Werror all-warnings -Icapi -Iinclude "$file" "$@" ;;
    esac || fail "$file does not compile"
    return
  done
}

count=0
for page in README.md docs/*.md docs/guides/*.md; do
  # A test of its own holds docs/step.md to examples/engine_step.c, whose parts its blocks are.
  [ "$page" != docs/step.md ] || continue
  name=$(basename "$page" .md)
  split "$page" "$folder/$name" "$4"
  for language in "${languages[@]}"; do
    whole=$folder/$name.$language
    for block in "$folder/$name".[0-9][0-9]."$language"; do
      [ -e "$block" ] || continue
      count=$((count + 1))
      if ! is_unit "$block"; then
        head=tests/docs_blocks/$name.$language.head
        [ -e "$head" ] || fail "$page has pieces of $language, and there is no $head"
        [ -e "$whole" ] || { echo "#line 1 \"$head\"" && cat "$head"; } >"$whole"
        cat "$block" >>"$whole"
      elif [ "$language" != cuda ] && grep -q '^int main(' "$block"; then
        program=${block%."$language"}
        compile "$language" "$block" -x none -L"$library" -Wl,-rpath,"$library" -lfwdmeta -o "$program"
        "$program" >"$program.printed" || fail "the program in $page ended with $?"
        [ ! -e "$program.expected" ] || diff "$program.expected" "$program.printed" || fail "$page shows other output"
      else
        compile "$language" "$block" -c -o "$block.o"
      fi
    done
    if [ -e "$whole" ]; then
      echo '}' >>"$whole"
      # A piece may leave what it declares to its reader.
      if [ "$language" = cuda ]; then
        compile cuda "$whole" -diag-suppress 177,550 -c -o "$whole.o"
      else
        compile "$language" "$whole" -Wno-unused-variable -Wno-unused-but-set-variable -c -o "$whole.o"
      fi
    fi
  done
done
echo "$count blocks of $4"
[ "$count" -ge 5 ] || fail "only $count blocks of $4 were found"
