#pragma once

#include <unistd.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

namespace accel::testing {

/// Removes the variables with some prefixes from the environment. Restores them when the object is destroyed.
class CleanEnvironment {
 public:
  explicit CleanEnvironment(std::vector<std::string> prefixes) : prefixes_(std::move(prefixes)), before_(found()) {
    clear();
  }
  ~CleanEnvironment() {
    clear();
    set(before_);
  }
  CleanEnvironment(const CleanEnvironment&) = delete;
  CleanEnvironment& operator=(const CleanEnvironment&) = delete;

  void set(const std::map<std::string, std::string>& variables) {
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
  }
  void clear() {
    for (const auto& [name, value] : found()) unsetenv(name.c_str());
  }

 private:
  [[nodiscard]] std::map<std::string, std::string> found() const {
    std::map<std::string, std::string> variables;
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string text = *entry;
      const auto name = text.substr(0, text.find('='));
      for (const auto& prefix : prefixes_) {
        if (name.starts_with(prefix)) variables[name] = text.substr(name.size() + 1);
      }
    }
    return variables;
  }

  std::vector<std::string> prefixes_;
  std::map<std::string, std::string> before_;
};

}  // namespace accel::testing
