// Loaded into the programs of a test (LD_PRELOAD): appends the address of every socket that listens to the file
// $ACCEL_LISTENERS. Some sockets listen for milliseconds, which a reader of /proc/net/tcp misses.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>

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
  const char* const file = std::getenv("ACCEL_LISTENERS");
  if (result != 0 || file == nullptr) return result;
  const auto address = address_of(socket);
  if (address.empty()) return result;
  const auto line = address + '\n';
  // One write per line: processes append to the same file at the same time.
  const int descriptor = open(file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor < 0) return result;
  [[maybe_unused]] const auto written = write(descriptor, line.data(), line.size());
  close(descriptor);
  return result;
}
