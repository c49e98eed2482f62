#include "backends/launch/ports.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "reference/core/errors.hpp"

namespace accel::launcher {
namespace {

// Binds on every interface. With SO_REUSEADDR on both sides, a port that is bound can be bound again by its number
// until one of the two listens, but it is no longer among those that the kernel chooses from.
bool bind_port(int socket, int port) {
  const int yes = 1;
  setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  return bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
}

int port_of(int socket) {
  sockaddr_in address{};
  socklen_t length = sizeof(address);
  ensure(getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length) == 0, "getsockname: {}",
         std::strerror(errno));
  return ntohs(address.sin_port);
}

// An abstract Unix socket has no file, the kernel frees it when the process ends, and like a port it belongs to one
// network namespace.
bool bind_name(int socket, int port) {
  const auto name = fmt::format("accel-launch-{}", port);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  name.copy(address.sun_path + 1, sizeof(address.sun_path) - 1);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return bind(socket, reinterpret_cast<sockaddr*>(&address), length) == 0;
}

}  // namespace

PortClaim::Socket::Socket(int domain, int type) : descriptor(socket(domain, type | SOCK_CLOEXEC, 0)) {
  if (descriptor < 0) throw Error(fmt::format("a socket cannot be opened: {}", std::strerror(errno)));
}

PortClaim::Socket::~Socket() { close(descriptor); }

// Two launchers can bind the same port, since both set SO_REUSEADDR, so the name decides.
PortClaim::PortClaim(int port) : port_socket_(AF_INET, SOCK_STREAM), name_socket_(AF_UNIX, SOCK_DGRAM) {
  const bool bound = bind_port(port_socket_.descriptor, port);
  if (!bound && port == 0) throw Error("no free TCP port on this machine; end programs that listen on many ports");
  port_ = port != 0 ? port : port_of(port_socket_.descriptor);
  holds_ = bound && bind_name(name_socket_.descriptor, port_);
}

int free_port() { return PortClaim(0).port(); }

}  // namespace accel::launcher
