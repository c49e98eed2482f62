#include "bench/record.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "sim/programs/rehearsal/output_files.hpp"

namespace accel::bench {
namespace {

std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

std::string kernel() {
  utsname name{};
  return uname(&name) == 0 ? fmt::format("{} {}", name.sysname, name.release) : "unknown";
}

}  // namespace

nlohmann::ordered_json record_of_run(const std::vector<std::string>& command, const std::string& commit) {
  const auto memory = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
#ifdef __clang__
  const std::string compiler = __VERSION__;
#else
  const std::string compiler = "GCC " __VERSION__;
#endif
  return {{"machine",
           {{"cpu", cpu_model()},
            {"cores", sysconf(_SC_NPROCESSORS_ONLN)},
            {"memory_gb", static_cast<int>(memory / 1e9)},
            {"kernel", kernel()}}},
          {"commit", commit},
          {"compiler", compiler},
          {"command", fmt::format("{}", fmt::join(command, " "))},
          {"date", programs::utc_timestamp()}};
}

}  // namespace accel::bench
