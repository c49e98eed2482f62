// `accel env`: describes the machine for a bug report, in the format of `accelerate env`. Everything is best effort: on
// an unusual machine the command must still print the rest, so missing values are left out instead of failing.
// Source: accelerate/commands/env.py.

#include <dlfcn.h>
#include <fmt/format.h>
#include <gnu/libc-version.h>
#include <sys/utsname.h>
#include <torch/cuda.h>
#include <torch/headeronly/version.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "reference/config/launch/launch_config.hpp"
#include "reference/core/errors.hpp"
#include "sim/programs/accel/commands.hpp"
#include "sim/programs/command_line/command_line.hpp"
#include "sim/programs/rehearsal/exit_code.hpp"

namespace accel::programs {
namespace {

namespace fs = std::filesystem;

// Returns the text after the colon of the first line that starts with `name`, "" if there is none.
std::string value_in(const std::string& file, const std::string& name) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const auto colon = line.find(':');
    if (line.starts_with(name) && colon != std::string::npos)
      return line.substr(std::min(line.find_first_not_of(" \t", colon + 1), line.size()));
  }
  return "";
}

// Returns the version number that a loaded library reports, or nothing if it is not loaded. The symbol is looked up at
// run time, because a CPU build links neither CUDA nor NCCL.
std::optional<int> version_number(const char* function) {
  using GetVersion = int (*)(int*);
  const auto get_version = reinterpret_cast<GetVersion>(dlsym(RTLD_DEFAULT, function));
  int version = 0;
  return get_version == nullptr || get_version(&version) != 0 ? std::nullopt : std::optional(version);
}

// CUDA encodes 13.0 as 13000.
std::string cuda_version() {
  const auto number = version_number("cudaRuntimeGetVersion");
  return number ? fmt::format("{}.{}", *number / 1000, *number % 1000 / 10) : "";
}

// NCCL encodes 2.28.9 as 22809.
std::string nccl_version() {
  const auto number = version_number("ncclGetVersion");
  return number ? fmt::format("{}.{}.{}", *number / 10000, *number / 100 % 100, *number % 100) : "not in this build";
}

std::string platform() {
  utsname name{};
  uname(&name);
  return fmt::format("{}-{}-{}-with-glibc{}", name.sysname, name.release, name.machine, gnu_get_libc_version());
}

std::string ram() {
  const auto bytes = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
  return fmt::format("{:.2f} GB", bytes / (1 << 30));
}

std::string cpu() {
  return fmt::format("{} ({} threads)", value_in("/proc/cpuinfo", "model name"), std::thread::hardware_concurrency());
}

// Lists the GPUs that the driver reports, even if this build cannot use them: that difference is often the bug.
std::string gpus() {
  std::string names;
  std::error_code none;
  for (const auto& folder : fs::directory_iterator("/proc/driver/nvidia/gpus", none))
    names += (names.empty() ? "" : ", ") + value_in(folder.path().string() + "/information", "Model");
  return names;
}

std::string location() {
  std::error_code none;
  const auto path = fs::read_symlink("/proc/self/exe", none);
  return none ? "Not found" : path.string();
}

// Omits properties that are unknown on this machine, such as GPUs without a driver.
void print_property(const std::string& name, const std::string& value) {
  if (!value.empty()) std::cout << fmt::format("- {}: {}\n", name, value);
}

// Formats a value as Python's dict does, so that the output can be compared with that of `accelerate env`.
std::string python_repr(const nlohmann::json& value) {
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (value.is_string()) return "'" + value.get<std::string>() + "'";
  if (!value.is_structured()) return value.dump();
  std::string items;
  for (const auto& [key, item] : value.items())
    items += (items.empty() ? "" : ", ") + (value.is_object() ? "'" + key + "': " : "") + python_repr(item);
  return value.is_object() ? "{" + items + "}" : "[" + items + "]";
}

void print_config(const LaunchConfig& config) {
  const auto values = nlohmann::json::parse(launch_config_json(config));
  for (const auto& [key, value] : values.items())
    std::cout << fmt::format("\t- {}: {}\n", key, value.is_string() ? value.get<std::string>() : python_repr(value));
}

// A missing default file is normal; a missing file that the user has named is an error, thrown by the reader.
std::optional<LaunchConfig> config_of(const std::string& file) {
  if (file.empty() && !fs::exists(default_config_file())) return std::nullopt;
  return read_launch_config(file.empty() ? default_config_file() : file);
}

// Quotes a text in a shell's single quotes; a quote inside ends the string, adds an escaped quote, and starts a new
// one.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char letter : text) out += letter == '\'' ? "'\\''" : std::string(1, letter);
  return out + "'";
}

// Only `export` lines go to standard output, so that a shell can evaluate it.
int print_variables(const std::string& config_file) {
  const auto config = config_of(config_file);
  check_config(config.has_value(), "env: {}: no such file; create it with accel config", default_config_file());
  for (const auto& [name, value] : environment_of(*config))
    std::cout << fmt::format("export {}={}\n", name, quoted(value));
  return kSuccess;
}

int print_environment(const std::string& config_file) {
  const auto config = config_of(config_file);
  std::cout << "\nCopy-and-paste the text below in your GitHub issue\n\n";
  print_property("`accel` version", kVersion);
  print_property("Platform", platform());
  print_property("`accel` location", location());
  print_property("Compiler", __VERSION__);
  print_property("LibTorch version", TORCH_VERSION);
  print_property("LibTorch accelerator", torch::cuda::is_available() ? "CUDA" : "N/A");
  print_property("CUDA runtime version", cuda_version());
  print_property("NCCL version", nccl_version());
  print_property("CPU type", cpu());
  print_property("System RAM", ram());
  print_property("GPU type", gpus());
  std::cout << (config_file.empty() ? "- `Accelerate` default config:\n" : "- `Accelerate` config passed:\n");
  if (config)
    print_config(*config);
  else
    std::cout << "\tNot found\n";
  return kSuccess;
}

}  // namespace

int env_main(int argc, char** argv) {
  std::string config_file;
  bool variables = false;
  CLI::App app("Prints versions, machine and configuration for a bug report.", "accel env");
  app.add_option("--config_file", config_file, "Configuration file to print; default: the default file, if it exists");
  app.add_flag("--variables", variables,
               "Print only the variables that accel launch derives from the configuration, as shell commands: eval "
               "\"$(accel env --variables)\"");
  if (const auto code = parse_command_line(app, argc, argv)) return *code;
  return variables ? print_variables(config_file) : print_environment(config_file);
}

}  // namespace accel::programs
