#pragma once

#include <sys/types.h>

#include <string>

#include "reference/elastic/membership.hpp"

namespace accel::elastic {

/// Where the other processes of an elastic job reach one. No text contains a space.
struct Contact {
  MemberId id = -1;
  pid_t pid = 0;              ///< among the processes of its machine; 0: it is not known
  std::string machine = "-";  ///< processes of one name see each other
  std::string mailbox = "-";
  std::string host = "-";  ///< where it serves a store
  int store_port = 0;
  bool operator==(const Contact&) const = default;
};

/// One line.
std::string text_of(const Contact& contact);
/// Throws ConfigError for a text that is none, or whose mailbox is no address.
Contact contact_of(const std::string& text);

}  // namespace accel::elastic
