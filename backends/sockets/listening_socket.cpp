#include "backends/sockets/listening_socket.hpp"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

namespace accel::sockets {
namespace {

// SO_REUSEADDR allows a restarted program to bind the port while connections of the last one are in TIME_WAIT.
int listen_at(const sockaddr* address, socklen_t size, bool is_dual_stack) {
  const int yes = 1, no = 0;
  const int descriptor = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (descriptor < 0) return -1;
  if (is_dual_stack) setsockopt(descriptor, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
  setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (bind(descriptor, address, size) == 0 && listen(descriptor, SOMAXCONN) == 0) return descriptor;
  const int reason = errno;
  close(descriptor);
  errno = reason;
  return -1;
}

// One dual-stack socket accepts IPv4 too. Some kernels lack IPv6.
int listen_everywhere(int port) {
  sockaddr_in6 all{};
  all.sin6_family = AF_INET6;
  all.sin6_addr = in6addr_any;
  all.sin6_port = htons(static_cast<std::uint16_t>(port));
  const int descriptor = listen_at(reinterpret_cast<sockaddr*>(&all), sizeof(all), /*is_dual_stack=*/true);
  if (descriptor >= 0 || errno == EADDRINUSE || errno == EMFILE || errno == ENFILE) return descriptor;
  sockaddr_in all_of_ipv4{};
  all_of_ipv4.sin_family = AF_INET;
  all_of_ipv4.sin_port = htons(static_cast<std::uint16_t>(port));
  return listen_at(reinterpret_cast<sockaddr*>(&all_of_ipv4), sizeof(all_of_ipv4), /*is_dual_stack=*/false);
}

bool is_loopback(const sockaddr& address) {
  if (address.sa_family == AF_INET6)
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
  return ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24 == 127;
}

bool is_literal(const std::string& host) {
  in6_addr bytes{};
  return inet_pton(AF_INET, host.c_str(), &bytes) == 1 || inet_pton(AF_INET6, host.c_str(), &bytes) == 1;
}

}  // namespace

int listen_on(const std::string& host, int port) {
  const std::string name = host == "localhost" ? "127.0.0.1" : host;
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(name.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return listen_everywhere(port);
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  if (is_loopback(*found->ai_addr) && !is_literal(name)) return listen_everywhere(port);
  const int descriptor = listen_at(found->ai_addr, found->ai_addrlen, /*is_dual_stack=*/false);
  return descriptor < 0 && errno == EADDRNOTAVAIL ? listen_everywhere(port) : descriptor;
}

}  // namespace accel::sockets
