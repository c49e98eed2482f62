#pragma once

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "reference/core/errors.hpp"

namespace accel::bench {

/// Returns the last line that a command prints on standard output, parsed. Throws Error if it is not a JSON object.
inline nlohmann::ordered_json printed_json(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::string line;
  char piece[4096];
  while (pipe && std::fgets(piece, sizeof piece, pipe.get()) != nullptr) line = piece;
  auto object = nlohmann::ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) throw Error("'" + command + "' did not print a JSON object in its last line");
  return object;
}

}  // namespace accel::bench
