#include "reference/config/launch/python_yaml.hpp"

#include <fmt/format.h>

#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <regex>

namespace accel {
namespace {

using Tree = nlohmann::json;

// The type of an unquoted scalar. Source: PyYAML, lib/yaml/resolver.py, the implicit resolvers of YAML 1.1. Octal,
// hexadecimal and base-60 numbers are recognized as integers, so that they are quoted when written.
enum class Plain { kText, kBool, kInt, kFloat, kNull, kOther };

Plain plain_kind(const std::string& text) {
  static const std::regex words("yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF");
  static const std::regex ints(
      "[-+]?0b[0-1_]+|[-+]?0[0-7_]+|[-+]?(0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+|[-+]?[1-9][0-9_]*(:[0-5]?[0-9])+");
  static const std::regex floats(
      "[-+]?[0-9][0-9_]*\\.[0-9_]*([eE][-+][0-9]+)?|\\.[0-9][0-9_]*([eE][-+][0-9]+)?|[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+"
      "\\.[0-9_]*|"
      "[-+]?\\.(inf|Inf|INF)|\\.(nan|NaN|NAN)");
  static const std::regex dates(
      "[0-9]{4}-[0-9]{2}-[0-9]{2}|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt]|[ "
      "\\t]+)[0-9]{1,2}:[0-9]{2}:[0-9]{2}(\\.[0-9]*)?([ \\t]*(Z|[-+][0-9]{1,2}(:[0-9]{2})?))?");
  if (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL") return Plain::kNull;
  if (text == "<<" || text == "=") return Plain::kOther;
  if (text.size() <= 5 && std::regex_match(text, words)) return Plain::kBool;
  if (std::string_view("+-.0123456789").find(text[0]) == std::string_view::npos) return Plain::kText;
  if (text.size() > 64) return Plain::kOther;  // std::regex recurses per character and could overflow the stack
  if (std::regex_match(text, ints)) return Plain::kInt;
  if (std::regex_match(text, floats)) return Plain::kFloat;
  return std::regex_match(text, dates) ? Plain::kOther : Plain::kText;
}

template <typename T>
// Forms that from_chars does not parse (1_000, 0x10, more than 64 bits) are returned as text.
Tree number_or_text(const std::string& text) {
  const auto* begin = text.data() + (text.starts_with('+') ? 1 : 0);
  const auto* end = text.data() + text.size();
  T value{};
  const auto [stop, error] = std::from_chars(begin, end, value);
  return error == std::errc() && stop == end ? Tree(value) : Tree(text);
}

bool is_double(const std::string& text) { return number_or_text<double>(text).is_number(); }

// kBool only contains the words of plain_kind, so the first letters distinguish true from false ("on" from
// "off").
Tree plain_value(const std::string& text, bool number_forms_of_json) {
  switch (plain_kind(text)) {
    case Plain::kNull: return nullptr;
    case Plain::kBool:
      return text[0] == 'y' || text[0] == 'Y' || text[0] == 't' || text[0] == 'T' || text[1] == 'n' || text[1] == 'N';
    case Plain::kInt: return number_or_text<std::int64_t>(text);
    case Plain::kFloat: return number_or_text<double>(text);
    default: return number_forms_of_json && is_double(text) ? number_or_text<double>(text) : Tree(text);
  }
}

// --- writing ---------------------------------------------------------------------------------------------------------

// Decodes UTF-8 to code points. An invalid byte is returned unchanged.
std::vector<char32_t> code_points(const std::string& text) {
  std::vector<char32_t> points;
  for (std::size_t at = 0; at < text.size();) {
    const auto first = static_cast<unsigned char>(text[at]);
    const std::size_t length = first < 0x80 ? 1 : first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : first >= 0xC0 ? 2 : 1;
    char32_t point = length == 1 ? first : first & (0x7F >> length);
    for (std::size_t next = at + 1; next < std::min(at + length, text.size()); ++next)
      point = point << 6 | (static_cast<unsigned char>(text[next]) & 0x3F);
    points.push_back(point);
    at += length;
  }
  return points;
}

// Source: PyYAML, lib/yaml/emitter.py, write_double_quoted, with the escapes that safe_dump uses by default.
std::string double_quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const auto point : code_points(text)) {
    if (point == '"' || point == '\\')
      quoted += fmt::format("\\{}", static_cast<char>(point));
    else if (point == '\n')
      quoted += "\\n";
    else if (point == '\t')
      quoted += "\\t";
    else if (point >= 0x20 && point <= 0x7E)
      quoted += static_cast<char>(point);
    else if (point <= 0xFF)
      quoted += fmt::format("\\x{:02X}", static_cast<std::uint32_t>(point));
    else if (point <= 0xFFFF)
      quoted += fmt::format("\\u{:04X}", static_cast<std::uint32_t>(point));
    else
      quoted += fmt::format("\\U{:08X}", static_cast<std::uint32_t>(point));
  }
  return quoted + '"';
}

// PyYAML prefers single quotes and uses double quotes only for characters that need an escape.
std::string single_quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char letter : text) quoted += letter == '\'' ? "''" : std::string(1, letter);
  return quoted + "'";
}

// True if PyYAML writes the text without quotes. Source: PyYAML, lib/yaml/emitter.py, analyze_scalar.
bool can_be_plain(const std::string& text) {
  if (plain_kind(text) != Plain::kText || text.starts_with("---") || text.starts_with("...")) return false;
  if (text.front() == ' ' || text.back() == ' ' || text.back() == ':') return false;
  if (std::string("#,[]{}&*!|>'\"%@`").find(text.front()) != std::string::npos) return false;
  const bool is_sign = std::string("?:-").find(text.front()) != std::string::npos;
  if (is_sign && (text.size() == 1 || text[1] == ' ')) return false;
  return text.find(": ") == std::string::npos && text.find(" #") == std::string::npos;
}

// Only printable ASCII is written unescaped, which is PyYAML's default (allow_unicode=False).
std::string text_scalar(const std::string& text) {
  for (const char letter : text) {
    if (letter < 0x20 || letter > 0x7E) return double_quoted(text);
  }
  return can_be_plain(text) ? text : single_quoted(text);
}

// PyYAML adds ".0" before an exponent, because it would read back 1e8 as a string.
std::string scalar(const Tree& value) {
  if (value.is_string()) return text_scalar(value.get<std::string>());
  auto text = value.dump();
  if (!value.is_number_float()) return text;
  const auto number = value.get<double>();
  if (number != number) return ".nan";
  if (number == std::numeric_limits<double>::infinity()) return ".inf";
  if (number == -std::numeric_limits<double>::infinity()) return "-.inf";
  if (const auto exponent = text.find('e'); exponent != std::string::npos && text.find('.') == std::string::npos)
    text.insert(exponent, ".0");
  return text;
}

bool is_block(const Tree& value) { return value.is_structured() && !value.empty(); }

void write_block(const Tree& value, int indent, std::string& out);

// Writes a value after a key or a dash. Nested lists are not indented below their key, as PyYAML writes them.
void write_value(const Tree& value, int indent, std::string& out) {
  if (!is_block(value)) {
    out += " " + (value.is_structured() ? value.dump() : scalar(value)) + "\n";
    return;
  }
  out += "\n";
  write_block(value, indent, out);
}

void write_block(const Tree& value, int indent, std::string& out) {
  const std::string margin(static_cast<std::size_t>(indent), ' ');
  if (value.is_array()) {
    for (const auto& item : value) {
      out += margin + "-";
      write_value(item, indent + 2, out);
    }
    return;
  }
  for (const auto& [key, item] : value.items()) {
    out += margin + text_scalar(key) + ":";
    write_value(item, item.is_array() ? indent : indent + 2, out);
  }
}

}  // namespace

Tree python_tree(const YAML::Node& node, bool number_forms_of_json) {
  if (!node.IsDefined() || node.IsNull()) return nullptr;
  if (node.IsScalar())
    return node.Tag() == "!" ? Tree(node.Scalar()) : plain_value(node.Scalar(), number_forms_of_json);
  Tree tree = node.IsMap() ? Tree::object() : Tree::array();
  for (const auto& entry : node) {
    if (node.IsMap())
      tree[entry.first.Scalar()] = python_tree(entry.second, number_forms_of_json);
    else
      tree.push_back(python_tree(entry, number_forms_of_json));
  }
  return tree;
}

// An empty list or mapping is written in flow style, as safe_dump does.
std::string python_yaml(const Tree& tree) {
  if (!is_block(tree)) return (tree.is_structured() ? tree.dump() : scalar(tree)) + "\n";
  std::string out;
  write_block(tree, 0, out);
  return out;
}

std::string python_json(const Tree& tree) { return tree.dump(2, ' ', /*ensure_ascii=*/true) + "\n"; }

// JSON writes characters beyond 16 bits as two escapes (a surrogate pair), which YAML does not allow. Nothing
// else changes, so line numbers stay valid for messages.
std::string json_as_yaml(const std::string& text) {
  static const std::regex pairs("\\\\u([dD][89abAB][0-9a-fA-F]{2})\\\\u([dD][c-fC-F][0-9a-fA-F]{2})");
  std::string out;
  auto rest = text.begin();
  for (std::sregex_iterator match(text.begin(), text.end(), pairs), end; match != end; ++match) {
    const auto high = std::stoul((*match)[1], nullptr, 16), low = std::stoul((*match)[2], nullptr, 16);
    out.append(rest, text.begin() + match->position());
    out += fmt::format("\\U{:08X}", 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00));
    rest = text.begin() + match->position() + match->length();
  }
  return out.append(rest, text.end());
}

}  // namespace accel
