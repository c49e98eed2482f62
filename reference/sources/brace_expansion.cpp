#include "reference/sources/brace_expansion.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>

#include "reference/core/errors.hpp"

namespace accel {
namespace {

std::optional<std::int64_t> digits_of(std::string_view text) {
  const bool is_number =
      !text.empty() && text.size() < 18 && text.find_first_not_of("0123456789") == std::string_view::npos;
  return is_number ? std::optional(std::stoll(std::string(text))) : std::nullopt;
}

std::vector<std::string> members_of(std::string_view group, const std::string& pattern) {
  std::vector<std::string> members;
  if (const auto dots = group.find(".."); dots != std::string_view::npos) {
    const auto first = digits_of(group.substr(0, dots)), last = digits_of(group.substr(dots + 2));
    check_argument(first && last && *first <= *last, "'{}': '{{{}}}' is no range; expected one such as {{000..122}}",
                   pattern, group);
    for (auto number = *first; number <= *last; ++number) members.push_back(fmt::format("{:0{}}", number, dots));
    return members;
  }
  check_argument(group.find(',') != std::string_view::npos,
                 "'{}': '{{{}}}' is neither a range nor a list; expected {{000..122}} or {{a,b}}", pattern, group);
  for (std::size_t begin = 0; begin <= group.size();) {
    const auto end = std::min(group.find(',', begin), group.size());
    members.emplace_back(group.substr(begin, end - begin));
    begin = end + 1;
  }
  return members;
}

}  // namespace

std::vector<std::string> expand_braces(const std::string& pattern) {
  const auto open = pattern.find('{');
  if (open == std::string::npos) return {pattern};
  const auto close = pattern.find('}', open);
  check_argument(close != std::string::npos, "'{}': a brace is not closed", pattern);
  std::vector<std::string> names;
  const auto rests = expand_braces(pattern.substr(close + 1));
  for (const auto& member : members_of(std::string_view(pattern).substr(open + 1, close - open - 1), pattern)) {
    for (const auto& rest : rests) names.push_back(pattern.substr(0, open) + member + rest);
  }
  return names;
}

}  // namespace accel
