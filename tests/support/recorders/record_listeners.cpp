// Loaded into the programs of a test (LD_PRELOAD): appends the address of every socket that listens to the file
// $ACCEL_LISTENERS. Some sockets listen for milliseconds, which a reader of /proc/net/tcp misses.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <string>

#include "tests/support/recorders/append_line.hpp"

namespace {

// Numeric, as 127.0.0.1 or ::1; empty for a socket of another family.
std::string address_of(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return {};
  const void* number = nullptr;
  if (address.ss_family == AF_INET) number = &reinterpret_cast<const sockaddr_in&>(address).sin_addr;
  if (address.ss_family == AF_INET6) number = &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (number == nullptr || inet_ntop(address.ss_family, number, text.data(), text.size()) == nullptr) return {};
  return text.data();
}

}  // namespace

extern "C" int listen(int socket, int backlog) noexcept {
  static const auto real = reinterpret_cast<int (*)(int, int)>(dlsym(RTLD_NEXT, "listen"));
  const int result = real(socket, backlog);
  if (result != 0) return result;
  if (const auto address = address_of(socket); !address.empty())
    accel::testing::append_line("ACCEL_LISTENERS", address);
  return result;
}
