#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

/// Datagrams between the processes of a job, on one machine or several.
///
///     Mailbox mailbox("10.0.0.1");                       // tells others mailbox.address()
///     mailbox.send(PostalAddress("10.0.0.2:41234"), bytes);
///     while (mailbox.receive(bytes)) ...                 // when mailbox.descriptor() can be read
///
/// UDP: a message may be lost, doubled or late, and nobody waits for a receiver that is stopped or dead. Thread rule:
/// one thread.
namespace accel::elastic {

/// Where a mailbox is.
class PostalAddress {
 public:
  /// "10.0.0.2:41234" or "[fe80::1]:41234". Throws ConfigError for another text.
  explicit PostalAddress(const std::string& text);

  [[nodiscard]] const sockaddr* address() const { return reinterpret_cast<const sockaddr*>(&address_); }
  [[nodiscard]] socklen_t length() const { return length_; }

 private:
  sockaddr_storage address_{};
  socklen_t length_ = 0;
};

class Mailbox {
 public:
  /// At a free port of an address of this machine, in numbers. Throws ConfigError if that is none.
  explicit Mailbox(const std::string& host);
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  [[nodiscard]] const std::string& address() const { return address_; }
  /// Can be read when a message has arrived.
  [[nodiscard]] int descriptor() const { return descriptor_; }
  /// Never waits.
  void send(const PostalAddress& to, std::span<const std::uint8_t> bytes) const;
  /// The next message; false if none has arrived.
  bool receive(std::vector<std::uint8_t>& bytes) const;

 private:
  int descriptor_ = -1;
  std::string address_;
};

}  // namespace accel::elastic
