// Tests of the interface on which a launcher and a store listen.
#include "backends/sockets/listening_socket.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <string>

namespace accel::sockets {
namespace {

// The local address of a socket that listens for `host`; "" if it does not listen.
std::string address_for(const std::string& host) {
  const int descriptor = listen_on(host, /*port=*/0);
  sockaddr_storage bytes{};
  socklen_t size = sizeof(bytes);
  auto* const address = reinterpret_cast<sockaddr*>(&bytes);
  const bool is_open = descriptor >= 0 && getsockname(descriptor, address, &size) == 0;
  close(descriptor);
  if (!is_open) return "";
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* const number = bytes.ss_family == AF_INET6
                                 ? static_cast<const void*>(&reinterpret_cast<sockaddr_in6&>(bytes).sin6_addr)
                                 : &reinterpret_cast<sockaddr_in&>(bytes).sin_addr;
  return inet_ntop(bytes.ss_family, number, text.data(), text.size());
}

TEST(ListeningSocketTest, ALoopbackAddressIsNotReachableFromOtherMachines) {
  EXPECT_EQ(address_for("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(address_for("localhost"), "127.0.0.1");
}

// As with a load balancer: 192.0.2.0/24 is reserved for documentation.
TEST(ListeningSocketTest, AnAddressOfAnotherMachineListensEverywhere) {
  for (const std::string host : {"192.0.2.1", "no-such-machine.invalid"}) {
    const auto address = address_for(host);
    EXPECT_TRUE(address == "::" || address == "0.0.0.0") << host << ": " << address;
  }
}

}  // namespace
}  // namespace accel::sockets
