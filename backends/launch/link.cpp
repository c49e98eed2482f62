// Non-blocking TCP between launchers. Every error that does not mean "try again" marks the link as lost; machines.cpp
// decides what a lost link means.
#include "backends/launch/link.hpp"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "reference/core/errors.hpp"

namespace accel::launcher {
namespace {

constexpr int kSocket = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;

// ENOTCONN: the connection of connect_to is still being established.
bool must_wait() {
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINPROGRESS || errno == ENOTCONN || errno == EINTR;
}

}  // namespace

Link::Link(int descriptor) : descriptor_(descriptor) {}

Link::~Link() {
  if (descriptor_ >= 0) close(descriptor_);
}

// The descriptor is owned, so a moved-from link holds -1.
Link::Link(Link&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      lost_(other.lost_),
      unsent_(std::move(other.unsent_)),
      received_(std::move(other.received_)),
      heard_(other.heard_) {}

Link& Link::operator=(Link&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  lost_ = other.lost_;
  unsent_ = std::move(other.unsent_);
  received_ = std::move(other.received_);
  heard_ = other.heard_;
  return *this;
}

std::vector<Link::Address> Link::addresses_of(const std::string& host, int port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int problem = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (problem == EAI_AGAIN || problem == EAI_NONAME || problem == EAI_NODATA)
    return {};  // a machine that is still starting may not be in DNS yet, as in Kubernetes; the caller retries
  // Other errors do not go away by retrying.
  check_config(problem == 0, "main_process_ip: {}: {}", host, gai_strerror(problem));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  std::vector<Address> addresses;
  for (const auto* next = found; next != nullptr; next = next->ai_next) {
    auto& address = addresses.emplace_back();
    std::memcpy(&address.bytes, next->ai_addr, next->ai_addrlen);
    address.size = next->ai_addrlen;
  }
  return addresses;
}

Link Link::connect_to(const std::string& host, int port, int attempt) {
  return connect_to_one(addresses_of(host, port), attempt);
}

Link Link::connect_to_one(const std::vector<Address>& addresses, int attempt) {
  Link link(-1);
  link.lost_ = true;
  if (addresses.empty()) return link;
  const auto& [bytes, size] = addresses[static_cast<std::size_t>(attempt) % addresses.size()];
  link = Link(socket(bytes.ss_family, kSocket, 0));
  link.lost_ = link.descriptor_ < 0 ||
               (connect(link.descriptor_, reinterpret_cast<const sockaddr*>(&bytes), size) != 0 && !must_wait());
  return link;
}

// Lines are queued, since the socket may not be connected yet, or its buffer may be full. Each poll() round retries.
void Link::send(std::string line) {
  std::replace(line.begin(), line.end(), '\n', ' ');
  unsent_ += line + '\n';
  write_pending();
}

void Link::write_pending() {
  while (!lost_ && !unsent_.empty()) {
    const auto count = ::send(descriptor_, unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
    if (count > 0) {
      unsent_.erase(0, static_cast<std::size_t>(count));
    } else {
      lost_ = !must_wait();
      return;
    }
  }
}

// An incomplete line stays in `received_` until the rest arrives.
std::vector<std::string> Link::receive() {
  write_pending();
  std::array<char, 4096> buffer{};
  while (!lost_) {
    const auto count = recv(descriptor_, buffer.data(), buffer.size(), 0);
    if (count <= 0) {
      // 0 is an orderly close. Lines that arrived before it are still returned below.
      lost_ = count == 0 || !must_wait();
      break;
    }
    heard_ = std::chrono::steady_clock::now();
    received_.append(buffer.data(), static_cast<std::size_t>(count));
  }
  std::vector<std::string> lines;
  for (std::size_t end; (end = received_.find('\n')) != std::string::npos; received_.erase(0, end + 1))
    lines.push_back(received_.substr(0, end));
  return lines;
}

std::chrono::milliseconds Link::silence() const {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - heard_);
}

// Not close(): the peer can still read what is on its way.
void Link::finish() { shutdown(descriptor_, SHUT_WR); }

Listener::Listener(int port) : descriptor_(socket(AF_INET6, kSocket, 0)) {
  const int yes = 1, no = 0;
  if (descriptor_ >= 0) {
    // One dual-stack socket accepts IPv4 too. SO_REUSEADDR allows a restarted launcher to bind the port while
    // connections of the last one are in TIME_WAIT.
    setsockopt(descriptor_, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
    setsockopt(descriptor_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_addr = in6addr_any;
    address.sin6_port = htons(static_cast<std::uint16_t>(port));
    if (bind(descriptor_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
        listen(descriptor_, SOMAXCONN) == 0)
      return;
  } else {  // a kernel without IPv6
    descriptor_ = socket(AF_INET, kSocket, 0);
    setsockopt(descriptor_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    if (bind(descriptor_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
        listen(descriptor_, SOMAXCONN) == 0)
      return;
  }
  const int reason = errno;
  close(std::exchange(descriptor_, -1));
  throw ConfigError(
      fmt::format("main_process_port: port {}: {}; choose another, on every machine", port, std::strerror(reason)));
}

Listener::~Listener() {
  if (descriptor_ >= 0) close(descriptor_);
}

std::optional<Link> Listener::accept() const {
  const int descriptor = accept4(descriptor_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  return descriptor < 0 ? std::nullopt : std::optional<Link>(descriptor);
}

}  // namespace accel::launcher
