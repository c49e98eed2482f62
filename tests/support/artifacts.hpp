#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace accel::testing {

/// Returns the path of a file or folder `name` in the folder of artifacts, and creates its parent folders. A test
/// writes there what a person reads after the run: distributions of generators, seeds, reports. The variable
/// ACCEL_ARTIFACTS, which `./dev test` sets, names the folder; nullopt without it, for example under plain ctest.
///
///     if (const auto path = artifact_path("distributions/data_laws.json")) std::ofstream(*path) << json;
std::optional<std::filesystem::path> artifact_path(const std::string& name);

}  // namespace accel::testing
