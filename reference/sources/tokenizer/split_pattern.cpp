#include "reference/sources/tokenizer/split_pattern.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "reference/core/letter_case.hpp"
#include "reference/sources/tokenizer/unicode_additions.hpp"

namespace accel::sources {
namespace {

// PCRE2's \s contains U+180E, which has not been a space since Unicode 6.3. These are the parts of a class.
constexpr std::string_view kSpaceMembers = R"(\t-\r\x{85}\p{Z})";

// Mn and Mc are missing because Unicode 15.1 moved a code point from one to the other.
constexpr std::array<std::string_view, 29> kCategories{"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Me", "N",  "Nd",
                                                       "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po",
                                                       "S",  "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp"};

// Independent of the locale, unlike std::ispunct.
bool is_punctuation(char character) {
  const bool is_letter = (character | 0x20) >= 'a' && (character | 0x20) <= 'z';
  return character > ' ' && character < 0x7f && !is_letter && (character < '0' || character > '9');
}

// Walks over a pattern once and copies what both libraries define alike.
class Translator {
 public:
  Translator(std::string_view pattern, std::vector<std::string>& problems) : rest_(pattern), problems_(problems) {}

  std::string run() {
    while (!rest_.empty()) step();
    return std::move(result_);
  }

 private:
  void step() {
    if (starts_with("(?")) return open_group();
    const char character = rest_.front();
    switch (character) {
      case '(': is_caseless_.push_back(is_caseless()); return copy(1);
      case ')':
        if (!is_caseless_.empty()) is_caseless_.pop_back();
        return copy(1);
      case '[': return copy_class();
      case '\\': return copy_escape(/*is_in_class=*/false);
      case '{': return copy_interval();
      case '.':
      case '^':
      case '$': return reject(1);
      default: break;
    }
    check_caseless();
    copy(1);
  }

  void open_group() {
    constexpr std::array<std::string_view, 6> kOpenings{"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!"};
    const auto found =
        std::find_if(kOpenings.begin(), kOpenings.end(), [&](const auto& opening) { return starts_with(opening); });
    if (found == kOpenings.end()) return reject(std::min(rest_.find_first_of(":)"), rest_.size() - 1) + 1);
    is_caseless_.push_back(is_caseless() || *found == "(?i:");
    copy(found->size());
  }

  // Oniguruma has classes within classes and intersections.
  void copy_class() {
    copy(starts_with("[^") ? 2 : 1);
    if (starts_with("]")) return reject(1);
    while (!rest_.empty() && rest_.front() != ']') {
      if (starts_with("[") || starts_with("&&")) return reject(2);
      if (starts_with("\\")) {
        copy_escape(/*is_in_class=*/true);
      } else {
        check_caseless();
        copy(1);
      }
    }
    copy(1);
  }

  void copy_escape(bool is_in_class) {
    const char escaped = rest_.size() < 2 ? '\0' : rest_[1];
    if (is_punctuation(escaped) || std::string_view(" rntf").find(escaped) != std::string_view::npos) return copy(2);
    if (escaped == 's') return add_members(kSpaceMembers, is_in_class, /*is_negated=*/false, 2);
    if (escaped == 'S' && !is_in_class) return add_members(kSpaceMembers, false, /*is_negated=*/true, 2);
    if (escaped == 'd') return add_members(category_members("Nd"), is_in_class, /*is_negated=*/false, 2);
    if ((escaped == 'p' || (escaped == 'P' && !is_in_class)) && rest_.substr(2, 1) == "{" && !is_caseless()) {
      const auto end = rest_.find('}');
      const auto members = end == std::string_view::npos ? "" : category_members(rest_.substr(3, end - 3));
      if (!members.empty()) return add_members(members, is_in_class, escaped == 'P', end + 1);
    }
    const auto end = rest_.find('}');
    reject(escaped == 'p' || escaped == 'P' ? (end == std::string_view::npos ? 2 : end + 1) : 2);
  }

  // A hyphen before a set is literal in Oniguruma, but would start a range with the first member.
  void add_members(std::string_view members, bool is_in_class, bool is_negated, std::size_t length) {
    if (is_in_class && result_.back() == '-') return reject(length);
    result_ += is_in_class ? std::string(members) : fmt::format("[{}{}]", is_negated ? "^" : "", members);
    rest_.remove_prefix(length);
  }

  // In Oniguruma, {,n} has a minimum of 0, and {n}? and {n,m}+ repeat the repetition.
  void copy_interval() {
    const auto end = std::min(rest_.find('}'), rest_.size() - 1);
    const auto inside = rest_.substr(1, end - 1);
    const bool is_interval = !inside.empty() && inside.front() != ',' && rest_[end] == '}' &&
                             inside.find_first_not_of("0123456789,") == std::string_view::npos &&
                             std::count(inside.begin(), inside.end(), ',') <= 1;
    const bool is_repeated = end + 1 < rest_.size() && (rest_[end + 1] == '+' || rest_[end + 1] == '?');
    if (!is_interval || is_repeated) return reject(end + 1 + (is_repeated ? 1 : 0));
    copy(end + 1);
  }

  // Without case, Oniguruma also matches "ss" with U+00DF and others that are several letters, and PCRE2 does not.
  void check_caseless() {
    if (!is_caseless()) return;
    const auto pair = lower_case({result_.back(), rest_.front()});
    constexpr std::array<std::string_view, 5> kFolded{"ss", "ff", "fi", "fl", "st"};
    const bool is_folded = std::find(kFolded.begin(), kFolded.end(), pair) != kFolded.end();
    if (is_folded) problems_.push_back(fmt::format("'{}' in a group (?i:)", pair));
    if (static_cast<unsigned char>(rest_.front()) >= 0x80) problems_.push_back("letters other than ASCII in (?i:)");
  }

  void copy(std::size_t length) {
    length = std::min(length, rest_.size());
    result_ += rest_.substr(0, length);
    rest_.remove_prefix(length);
  }

  void reject(std::size_t length) {
    length = std::min(length, rest_.size());
    problems_.push_back(fmt::format("'{}'", rest_.substr(0, length)));
    rest_.remove_prefix(length);
  }

  [[nodiscard]] bool starts_with(std::string_view text) const { return rest_.starts_with(text); }
  [[nodiscard]] bool is_caseless() const { return !is_caseless_.empty() && is_caseless_.back(); }

  std::string_view rest_;
  std::vector<std::string>& problems_;
  std::string result_;
  std::vector<bool> is_caseless_;  // of the open groups
};

}  // namespace

std::string to_pcre2(std::string_view pattern, std::vector<std::string>& problems) {
  return Translator(pattern, problems).run();
}

std::string literal_pattern(std::string_view text) {
  std::string result;
  for (const char character : text) {
    if (is_punctuation(character)) result += '\\';
    result += character;
  }
  return result;
}

// A PCRE2 that has the additions matches them anyway, so that adding them changes nothing.
std::string category_members(std::string_view category) {
  if (std::find(kCategories.begin(), kCategories.end(), category) == kCategories.end()) return "";
  auto members = fmt::format("\\p{{{}}}", category);
  for (const auto& range : unicode_additions()) {
    if (range.category.starts_with(category))
      members += fmt::format("\\x{{{:x}}}-\\x{{{:x}}}", static_cast<std::uint32_t>(range.first),
                             static_cast<std::uint32_t>(range.last));
  }
  return members;
}

}  // namespace accel::sources
