#include "reference/config/config_value.hpp"

#include <fmt/format.h>

namespace accel {

std::string python_text(const ConfigValue& value) {
  struct Writer {
    std::string operator()(bool flag) const { return flag ? "True" : "False"; }
    std::string operator()(std::int64_t number) const { return fmt::format("{}", number); }
    std::string operator()(double number) const {
      const auto text = fmt::format("{}", number);
      return text.find_first_not_of("-0123456789") == std::string::npos ? text + ".0" : text;
    }
    std::string operator()(const std::string& text) const { return text; }
    std::string operator()(const std::vector<bool>& flags) const {
      std::string text;
      for (const bool flag : flags) text += (text.empty() ? "" : ", ") + (*this)(flag);
      return "[" + text + "]";
    }
  };
  return std::visit(Writer(), value);
}

}  // namespace accel
