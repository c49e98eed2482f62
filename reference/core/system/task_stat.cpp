#include "reference/core/system/task_stat.hpp"

#include <fstream>

namespace accel {

// The state follows the name of the program, which may contain anything.
std::string task_stat(const std::string& folder) {
  std::ifstream file(folder + "/stat");
  std::string text;
  std::getline(file, text);
  const auto name_end = text.rfind(") ");
  return name_end == std::string::npos ? "" : text.substr(name_end + 2);
}

}  // namespace accel
