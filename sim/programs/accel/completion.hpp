#pragma once

#include <string>
#include <vector>

namespace accel::programs {

/// A command of `accel`.
struct Command {
  const char* name;
  int (*main)(int argc, char** argv);  ///< argv[0] is the name
  const char* help;
};

/// A completion script for bash or zsh, made from what the commands are told of; empty for another shell.
///
///     source <(accel --completion bash)
std::string completion_script(const std::string& shell, const std::vector<Command>& commands);

}  // namespace accel::programs
