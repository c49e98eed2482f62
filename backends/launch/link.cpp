// Non-blocking TCP between launchers. Every error that does not mean "try again" marks the link as lost; machines.cpp
// decides what a lost link means.
#include "backends/launch/link.hpp"

#include <fcntl.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "backends/sockets/listening_socket.hpp"
#include "reference/core/system/resource_limits.hpp"

namespace accel::launcher {
namespace {

constexpr auto kPauseWithoutDescriptors = std::chrono::seconds(1);
constexpr int kSocket = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;

constexpr std::size_t kMessageBytesMax = 64 << 10;
constexpr char kNewline = '\v';  // in a message, since a newline ends it

// ENOTCONN: the connection of connect_to is still being established.
bool must_wait() {
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINPROGRESS || errno == ENOTCONN || errno == EINTR;
}

}  // namespace

LauncherLink::LauncherLink(int descriptor) : descriptor_(descriptor) {}

LauncherLink::~LauncherLink() {
  if (descriptor_ >= 0) close(descriptor_);
}

// The descriptor is owned, so a moved-from link holds -1.
LauncherLink::LauncherLink(LauncherLink&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      lost_(other.lost_),
      unsent_(std::move(other.unsent_)),
      received_(std::move(other.received_)),
      heard_(other.heard_) {}

LauncherLink& LauncherLink::operator=(LauncherLink&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  lost_ = other.lost_;
  unsent_ = std::move(other.unsent_);
  received_ = std::move(other.received_);
  heard_ = other.heard_;
  return *this;
}

std::vector<LauncherLink::Address> LauncherLink::addresses_of(const std::string& host, int port) {
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

LauncherLink LauncherLink::connect_to(const std::string& host, int port, int attempt) {
  return connect_to_one(addresses_of(host, port), attempt);
}

LauncherLink LauncherLink::connect_to_one(const std::vector<Address>& addresses, int attempt) {
  LauncherLink link(-1);
  link.lost_ = true;
  if (addresses.empty()) return link;
  const auto& [bytes, size] = addresses[static_cast<std::size_t>(attempt) % addresses.size()];
  link = LauncherLink(socket(bytes.ss_family, kSocket, 0));
  link.lost_ = link.descriptor_ < 0 ||
               (connect(link.descriptor_, reinterpret_cast<const sockaddr*>(&bytes), size) != 0 && !must_wait());
  return link;
}

// Lines are queued, since the socket may not be connected yet, or its buffer may be full. Each poll() round retries.
void LauncherLink::send(std::string line) {
  std::replace(line.begin(), line.end(), '\n', kNewline);
  line.resize(std::min(line.size(), kMessageBytesMax - 1));
  unsent_ += line + '\n';
  write_pending();
}

void LauncherLink::write_pending() {
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

// An incomplete line stays in `received_` until the rest arrives. A peer that sends more than a line may have is not a
// launcher. The rest of what has arrived is read in the next round.
std::vector<std::string> LauncherLink::receive() {
  write_pending();
  std::array<char, 4096> buffer{};
  for (std::size_t num_read = 0; !lost_ && num_read < kMessageBytesMax;) {
    const auto count = recv(descriptor_, buffer.data(), buffer.size(), 0);
    if (count <= 0) {
      // 0 is an orderly close. Lines that arrived before it are still returned below.
      lost_ = count == 0 || !must_wait();
      break;
    }
    heard_ = std::chrono::steady_clock::now();
    received_.append(buffer.data(), static_cast<std::size_t>(count));
    num_read += static_cast<std::size_t>(count);
  }
  std::vector<std::string> lines;
  std::size_t begin = 0;
  for (std::size_t end; (end = received_.find('\n', begin)) != std::string::npos; begin = end + 1)
    lines.push_back(received_.substr(begin, end - begin));
  for (auto& line : lines) std::replace(line.begin(), line.end(), kNewline, '\n');
  received_.erase(0, begin);
  if (received_.size() >= kMessageBytesMax) {
    received_.clear();
    lost_ = true;
  }
  return lines;
}

std::chrono::milliseconds LauncherLink::silence() const {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - heard_);
}

// Not close(): the peer can still read what is on its way.
void LauncherLink::finish() { shutdown(descriptor_, SHUT_WR); }

LauncherListener::LauncherListener(const std::string& host, int port) : descriptor_(sockets::listen_on(host, port)) {
  if (descriptor_ >= 0) return;
  throw ConfigError(fmt::format("main_process_port: port {}: {}; choose another, on every machine", port,
                                describe_system_error(errno)));
}

std::string LauncherLink::peer_address() const {
  sockaddr_storage bytes{};
  socklen_t size = sizeof(bytes);
  std::array<char, NI_MAXHOST> text{};
  auto* const any = reinterpret_cast<sockaddr*>(&bytes);
  if (getpeername(descriptor_, any, &size) != 0 ||
      getnameinfo(any, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0)
    return "an unknown address";
  return text.data();
}

LauncherListener::~LauncherListener() {
  if (descriptor_ >= 0) close(descriptor_);
}

std::optional<LauncherLink> LauncherListener::accept() {
  const int descriptor = accept4(descriptor_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (descriptor >= 0) return std::optional<LauncherLink>(descriptor);
  // The connection stays in the queue of the listener, which therefore stays readable.
  if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
    resumes_at_ = Clock::now() + kPauseWithoutDescriptors;
  return std::nullopt;
}

}  // namespace accel::launcher
