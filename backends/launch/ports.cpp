#include "backends/launch/ports.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>

#include "reference/core/errors.hpp"

namespace accel::launcher {
namespace {

// Binds a port on every interface (0: any free one) and releases it again. Returns the port, or nothing if it is in
// use. listen() is part of the test, since with SO_REUSEADDR a bind can succeed while another socket listens.
std::optional<int> try_port(int port) {
  const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ensure(descriptor >= 0, "socket: {}", std::strerror(errno));
  const int yes = 1;
  setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  socklen_t length = sizeof(address);
  const bool bound = bind(descriptor, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
                     listen(descriptor, 1) == 0 &&
                     getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  close(descriptor);
  return bound ? std::optional<int>(ntohs(address.sin_port)) : std::nullopt;
}

}  // namespace

bool is_port_free(int port) { return try_port(port).has_value(); }

int free_port() {
  const auto port = try_port(0);
  ensure(port.has_value(), "no free TCP port on this machine");
  return *port;
}

// The claim is an abstract Unix socket: it has no file, the kernel frees it when the process ends, and like a port it
// belongs to one network namespace.
PortClaim::PortClaim(int port) : descriptor_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
  const auto name = fmt::format("accel-launch-{}", port);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  name.copy(address.sun_path + 1, sizeof(address.sun_path) - 1);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  holds_ = descriptor_ >= 0 && bind(descriptor_, reinterpret_cast<sockaddr*>(&address), length) == 0;
}

PortClaim::~PortClaim() {
  if (descriptor_ >= 0) close(descriptor_);
}

}  // namespace accel::launcher
