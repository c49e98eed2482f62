#include "backends/elastic/mailbox.hpp"

#include <fmt/format.h>
#include <netdb.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "reference/core/errors.hpp"
#include "reference/core/system/resource_limits.hpp"

namespace accel::elastic {
namespace {

constexpr std::size_t kMaxDatagram = 65'536;

using Found = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Found find(const std::string& host, const std::string& port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  const int problem = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  check_config(problem == 0, "the address {}: {}; expected one in numbers", host, gai_strerror(problem));
  return {found, &freeaddrinfo};
}

}  // namespace

PostalAddress::PostalAddress(const std::string& text) {
  const auto colon = text.rfind(':');
  check_config(colon != std::string::npos, "the address {}: expected HOST:PORT", text);
  auto host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  const auto found = find(host, text.substr(colon + 1));
  std::memcpy(&address_, found->ai_addr, found->ai_addrlen);
  length_ = found->ai_addrlen;
}

Mailbox::Mailbox(const std::string& host) {
  const auto found = find(host, "0");
  descriptor_ = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  checked_descriptor(descriptor_, "the mailbox of a member of an elastic job");
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  auto* const any = reinterpret_cast<sockaddr*>(&bound);
  const bool is_bound =
      bind(descriptor_, found->ai_addr, found->ai_addrlen) == 0 && getsockname(descriptor_, any, &length) == 0;
  const int reason = errno;
  std::array<char, NI_MAXSERV> port{};
  if (!is_bound || getnameinfo(any, length, nullptr, 0, port.data(), port.size(), NI_NUMERICSERV | NI_DGRAM) != 0) {
    close(descriptor_);
    throw ConfigError(fmt::format("a mailbox at {}: {}", host, std::strerror(reason)));
  }
  const bool is_v6 = found->ai_family == AF_INET6;
  address_ = fmt::format("{}{}{}:{}", is_v6 ? "[" : "", host, is_v6 ? "]" : "", port.data());
}

Mailbox::~Mailbox() { close(descriptor_); }

void Mailbox::send(const PostalAddress& to, std::span<const std::uint8_t> bytes) const {
  (void)sendto(descriptor_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL, to.address(), to.length());
}

bool Mailbox::receive(std::vector<std::uint8_t>& bytes) const {
  bytes.resize(kMaxDatagram);
  for (;;) {
    const auto size = recv(descriptor_, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (size < 0 && (errno == EINTR || errno == ECONNREFUSED)) continue;
    bytes.resize(size < 0 ? 0 : static_cast<std::size_t>(size));
    return size >= 0;
  }
}

}  // namespace accel::elastic
