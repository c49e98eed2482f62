# A filter of doxygen's input. The project's `///` comments are plain Markdown; doxygen needs three changes:
#  - The comment directly before `namespace ... {` is about the file. It is marked so, or doxygen would collect these
#    comments of all headers on the page of namespace accel. The first class after it that has no comment of its own
#    shows the same text. Marks replace empty lines, so that lines keep their numbers.
#  - `\` and `@` in prose begin no command.
#  - `f(0) .. f(9)` is not the end of a sentence, and so of a summary.
function plain(line, parts, count, part, result) {
  if (line ~ /^ *\/\/\/     /) return line  # code
  gsub(/ \.\. /, " ... ", line)
  count = split(line, parts, "`")
  for (part = 1; part <= count; ++part) {
    if (part % 2) gsub(/[\\@]/, "\\\\&", parts[part])
    result = result (part > 1 ? "`" : "") parts[part]
  }
  return result
}
function print_block(is_of_file, line) {
  if (has_empty_line) print (is_of_file && count ? "/// @file" : "")
  if (is_of_file && count && has_empty_line) has_file_comment = 1
  for (line = 1; line <= count; ++line) print block[line]
  count = has_empty_line = 0
}
/^$/ { print_block(0); has_empty_line = 1; next }
/^\/\/\// { block[++count] = plain($0); next }
/^namespace [a-z0-9_:]+ \{/ { print_block(1); print; next }
/^(template|class|struct) .*[^;]$/ && has_file_comment && has_empty_line && !count {
  print "/// @copydoc " substr(FILENAME, length(ENVIRON["PWD"]) + 2)
  has_empty_line = has_file_comment = 0
}
/\/\/\// { print_block(0); start = index($0, "///"); print substr($0, 1, start - 1) plain(substr($0, start)); next }
{ print_block(0); print }
END { print_block(0) }
