#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backends/elastic/contact.hpp"

/// The file in which the members of a training note how a process joins them: a launcher names it, and starts lost
/// ranks anew with it. Every machine has one.
namespace accel::elastic {

struct MembersFile {
  std::uint64_t job = 0;
  std::vector<Contact> members = {};
};

/// Replaces the file, so that readers see the old content or the new one. Throws ConfigError.
void write_members(const std::string& path, const MembersFile& content);
/// Throws ConfigError for a file that is missing or damaged.
MembersFile read_members(const std::string& path);

}  // namespace accel::elastic
