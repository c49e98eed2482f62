#include "sim/programs/processes/started_worlds.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "reference/config/environment.hpp"
#include "reference/core/system/resource_limits.hpp"
#include "sim/programs/processes/python_program.hpp"

namespace accel::programs {
namespace {

namespace fs = std::filesystem;

// Of the build tree or of the installed package, with the file sitecustomize.py alone.
fs::path site_folder() {
  const auto package = built_package_folder();
  const auto built = package / "simranks" / "site";
  return fs::exists(built) ? built : package.parent_path() / "site";
}

}  // namespace

StartedWorlds::StartedWorlds(std::string request)
    : request_(std::move(request)),
      descriptor_(checked_descriptor(memfd_create("accel-worlds", MFD_CLOEXEC), "the number of simulated worlds")) {}

StartedWorlds::~StartedWorlds() { close(descriptor_); }

void StartedWorlds::serve(std::map<std::string, std::string>& environment) const {
  const auto given = environment.find("PYTHONPATH");
  const auto path = given != environment.end() ? given->second : accel::environment("PYTHONPATH").value_or("");
  environment["PYTHONPATH"] = python_path(site_folder(), path);
  environment["ACCEL_WORLDS"] = fmt::format("/proc/{}/fd/{}", getpid(), descriptor_);
  environment["ACCEL_WORLD_REQUEST"] = request_;
}

int StartedWorlds::count() const {
  struct stat status {};
  return fstat(descriptor_, &status) == 0 ? static_cast<int>(status.st_size) : 0;
}

}  // namespace accel::programs
