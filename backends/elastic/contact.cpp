#include "backends/elastic/contact.hpp"

#include <fmt/format.h>

#include <sstream>

#include "backends/elastic/mailbox.hpp"
#include "reference/core/errors.hpp"

namespace accel::elastic {

std::string text_of(const Contact& contact) {
  return fmt::format("{} {} {} {} {} {}", contact.id, contact.pid, contact.machine, contact.mailbox, contact.host,
                     contact.store_port);
}

Contact contact_of(const std::string& text) {
  Contact contact;
  std::istringstream words(text);
  words >> contact.id >> contact.pid >> contact.machine >> contact.mailbox >> contact.host >> contact.store_port;
  check_config(!words.fail() && contact.id >= 0, "elastic: '{}' is no address of a process", text);
  (void)PostalAddress(contact.mailbox);
  return contact;
}

}  // namespace accel::elastic
