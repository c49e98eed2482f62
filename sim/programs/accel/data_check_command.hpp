#pragma once

#include <string>
#include <vector>

namespace accel::programs {

/// `accel data-check`. `argv[0]` is "data-check". Returns the exit code; throws ConfigError for wrong usage.
int data_check_main(int argc, char** argv);

/// Numbers of ranks, rising, each once: "1-64", "4", "1,2,4-8". Adds what is wrong with the text to `problems`.
std::vector<int> read_numbers_of_ranks(const std::string& text, std::vector<std::string>& problems);

}  // namespace accel::programs
