# Lets Doxygen read the headers and pages as they are: awk -f doxygen_filter.awk FILE. Comments are plain ones, so this
# marks them.
#
#   /* ---- name -- */              opens the group `name`, up to the next one; docs/groups.dox has the titles
#   a comment before a declaration  documents it, and functions and macros right below it too
#   a comment before a blank line   belongs to the group
#   code; /* text */                documents what is before it, over several lines too
#   //                              the same in C++, where what has none says which C call it makes
#
# It adds what is the same everywhere: struct_size and the INITIALIZERs.

function flush_comment(blank_follows, text) {
  if (comment == "") return
  text = comment
  comment = ""
  if (!file_seen) {
    file_seen = 1
    sub(/\/\*\*/, "/** \\file\n\\verbatim", text)
    sub(/[ \n]*\*\/$/, "\n\\endverbatim\n*/", text)
    print text
  } else if (blank_follows) {
    if (group == "") return
    sub(/\/\*\*/, "/** \\addtogroup " group "\n", text)
    print "/** \\} */"
    print linked(text)
    print "/** \\addtogroup " group "\n \\{ */"
  } else {
    text = linked(text)
    print text
    last = text ~ /^\/\*\*/ ? text : ""
    documented = 1
  }
}

# `fwdmeta_x` in a text as a link, where it is no metric.
function linked(text, out, name, before, after) {
  out = ""
  while (match(text, /fwdmeta_[a-z0-9_]*[a-z0-9]/)) {
    before = RSTART > 1 ? substr(text, RSTART - 1, 1) : " "
    after = substr(text, RSTART + RLENGTH, 2)
    out = out substr(text, 1, RSTART - 1)
    name = substr(text, RSTART, RLENGTH)
    if (before ~ /[ (`\n]/ && after !~ /^(\.h|_|\()/ && name !~ /_(total|bytes|handles)$/) out = out "#"
    out = out name
    text = substr(text, RSTART + RLENGTH)
  }
  return out text
}

function close_group() {
  if (group != "") print "/** \\} */"
  group = ""
}

function c_line(line, at) {
  if (in_comment) {
    comment = comment "\n" line
    if (line ~ /\*\//) in_comment = 0
    return
  }
  if (in_trailing) {
    print linked(line)
    if (line ~ /\*\//) in_trailing = 0
    return
  }
  if (line ~ /^\/\* -+ .* -- \*\/$/) {
    flush_comment(1)
    close_group()
    group = line
    gsub(/^\/\* -+ | -- \*\/$/, "", group)
    gsub(/[^A-Za-z0-9]+/, "_", group)
    print "/** \\addtogroup " group "\n \\{ */"
    documented = 0
    last = ""
    return
  }
  if (line ~ /^ *\/\*/) {
    flush_comment(0)
    comment = line
    sub(/\/\*/, "/**", comment)
    in_comment = line !~ /\*\//
    return
  }
  flush_comment(line ~ /^ *$/)
  if (line ~ /^( *|\}.*)$/) last = ""
  if (line ~ /^#ifdef __cplusplus/ && group != "") close_group()
  if (line ~ /^(FWDMETA_API|#define)/ && line !~ /_INITIALIZER/ && !documented && last != "") print last
  if (line ~ /^#define FWDMETA_.*_INITIALIZER/) {
    at = line
    sub(/^#define FWDMETA_/, "", at)
    sub(/_INITIALIZER.*/, "", at)
    print "/** Initialises a #fwdmeta_" tolower(at) "_t with its defaults, and struct_size where it has one. */"
  }
  if (line ~ /^typedef int32_t fwdmeta_[a-z_]*_t;/) {
    at = line
    sub(/^typedef int32_t /, "", at)
    sub(/;.*/, "", at)
    values_of = at
  } else if (line ~ /^enum \{/) {
    if (values_of != "" && !documented) print "/** Values of #" values_of ". */"
    values_of = ""
  }
  if (line ~ /^  uint64_t struct_size;$/) line = line " /* sizeof(the struct) as the caller knows it */"
  at = index(line, "/*")
  if (at > 0 && line !~ /^#/) {
    in_trailing = index(line, "*/") == 0
    line = substr(line, 1, at - 1) "/**<" linked(substr(line, at + 2))
    if (match(line, /^  [a-z0-9_]+ [a-z_]+, /)) { # two members share it
      print substr(line, 1, RLENGTH - 2) "; " substr(line, index(line, "/**<"))
      match(line, /^  [a-z0-9_]+ /)
      line = substr(line, 1, RLENGTH) substr(line, index(line, ", ") + 2)
    }
  }
  print line
  if (line !~ /^ *$/) documented = 0
}

# Doxygen finds pages, and not the headings in them.
FILENAME ~ /\.md$/ { gsub(/\.md#[^)]*\)/, ".md)"); print; next }
FILENAME ~ /\.h$/ { c_line($0); next }
FILENAME !~ /\.(hpp|cuh)$/ { print; next }

# C++: the lines are kept until the end, because what a function calls stands below it.
{ kept[++num_kept] = $0 }

function indent_of(line) {
  sub(/[^ ].*/, "", line)
  return length(line)
}

# The first C call in the body of the function that begins at line i, or "".
function called(i, first) {
  for (first = i; i <= num_kept; ++i) {
    if (i > first && indent_of(kept[i]) <= indent_of(kept[first])) return ""
    if (match(kept[i], /fwdmeta_[a-z0-9_]+\(/)) return substr(kept[i], RSTART, RLENGTH - 1)
    if (match(kept[i], /&fwdmeta_[a-z0-9_]+[,)]/)) return substr(kept[i], RSTART + 1, RLENGTH - 2)
    if (i == first && kept[i] ~ /[;}]$/) return ""
  }
  return ""
}

function cpp_lines(i, line, indent, call, head, commented, doc, function_begins, in_body) {
  print "/** \\file"
  head = 1
  for (i = 1; i <= num_kept; ++i) {
    line = kept[i]
    indent = substr("    ", 1, indent_of(line))
    if (head && line !~ /^\/\//) {
      print "*/"
      head = 0
    }
    if (line ~ /^ *\/\/ ---- /) continue
    if (in_body) { # of a function outside classes, whose comments are its own
      print line
      in_body = line != "}"
      doc = ""
      continue
    }
    if (line ~ /^[A-Za-z_]/ && line !~ /^(template|struct|class|enum|namespace|using|extern)/) function_begins = 1
    if (line ~ /[;}]$/) function_begins = 0
    if (function_begins && line ~ /\{$/) {
      in_body = 1
      function_begins = 0
    }
    if (line ~ /^ *\/\//) {
      sub(/\/\/ ?/, head ? "" : "/// ", line)
      line = linked(line)
      print line
      doc = commented ? doc "\n" line : line
      commented = 1
      continue
    }
    if (line ~ /^ *$/) doc = ""
    if (!commented && indent_of(line) <= 2 && line ~ /^ *[A-Za-z\[]/) {
      call = ""
      if (line ~ /^struct [A-Za-z]* : fwdmeta_[a-z_]* \{/) {
        call = line
        gsub(/.* : | \{.*/, "", call)
        print "/// #" call ", complete with its defaults."
      } else if (line ~ /\(/ || line ~ /^ *template/) {
        call = called(i)
        if (call != "") print indent "/// Calls #" call ", whose rules hold."
        else if (doc != "") print doc
      }
    }
    if (match(line, /; +\/\/ /)) line = substr(line, 1, RSTART) "  ///< " linked(substr(line, RSTART + RLENGTH))
    if (line ~ /^ *template </) commented = 1
    else commented = 0
    print line
  }
}

END {
  if (FILENAME ~ /\.h$/) close_group()
  if (num_kept > 0) cpp_lines()
}
