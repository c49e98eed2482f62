#include "backends/elastic/members_file.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "reference/core/errors.hpp"

namespace accel::elastic {

// Not by write_atomically, whose temporary file has one name: the ranks of a machine may write at once.
void write_members(const std::string& path, const MembersFile& content) {
  const auto written = fmt::format("{}.{}", path, getpid());
  {
    std::ofstream out(written);
    out << content.job << '\n';
    for (const auto& member : content.members) out << text_of(member) << '\n';
    check_config(static_cast<bool>(out.flush()), "elastic: {} cannot be written", written);
  }
  check_config(std::rename(written.c_str(), path.c_str()) == 0, "elastic: {} cannot be replaced", path);
}

MembersFile read_members(const std::string& path) {
  std::ifstream in(path);
  MembersFile content;
  std::string line;
  check_config(static_cast<bool>(std::getline(in, line)) && std::sscanf(line.c_str(), "%lu", &content.job) == 1,
               "elastic: {} has no members of a training that a process could join", path);
  while (std::getline(in, line)) content.members.push_back(contact_of(line));
  return content;
}

}  // namespace accel::elastic
