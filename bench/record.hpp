#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace accel::bench {

/// What a file of numbers records besides them: machine (CPU model, cores, memory, kernel), commit, compiler, command
/// and date (UTC).
nlohmann::ordered_json record_of_run(const std::vector<std::string>& command, const std::string& commit);

}  // namespace accel::bench
