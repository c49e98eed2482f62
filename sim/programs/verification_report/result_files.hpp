#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "sim/report/verification_report.hpp"

/// Readers of files. Each adds one problem per file that it cannot read, and returns the content of the others.
namespace accel::programs {

using Problems = std::vector<std::string>;

/// Returns the files in a folder that end in `ending`, sorted; none if the folder is missing.
std::vector<std::filesystem::path> files_in(const std::filesystem::path& folder, const std::string& ending);

/// Returns the content of a file; nullopt after adding a problem if it cannot be read.
std::optional<std::string> read_file(const std::filesystem::path& path, Problems& problems);

/// Calls `read` with the content of a file. An exception of it becomes a problem that says how to write the file again.
void read_json_file(const std::filesystem::path& path, const std::string& writer, Problems& problems,
                    const std::function<void(const nlohmann::ordered_json&)>& read);

std::vector<sim::LawComparison> read_comparisons(const std::filesystem::path& folder, Problems& problems);
std::vector<sim::GeneratorDistribution> read_generators(const std::filesystem::path& folder, Problems& problems);
std::vector<sim::MutantResult> read_mutants(const std::filesystem::path& file, Problems& problems);

struct BenchmarkFiles {
  std::vector<sim::BenchmarkResult> results;
  int num_without_rows = 0;  ///< earlier files in another format
};
BenchmarkFiles read_benchmarks(const std::filesystem::path& current, const std::filesystem::path& history,
                               Problems& problems);

}  // namespace accel::programs
