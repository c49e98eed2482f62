// Tests of the claim by which a launcher keeps the port of its job until rank 0 listens on it.
#include "backends/launch/ports.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "backends/launch/link.hpp"

namespace accel::launcher {
namespace {

// The port that the kernel gives to a socket that asks for any, as Gloo's do.
int any_port() {
  const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int yes = 1;
  setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t length = sizeof(address);
  EXPECT_EQ(bind(descriptor, reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length), 0);
  close(descriptor);
  return ntohs(address.sin_port);
}

// The kernel draws from about 7,000 ports, so a port that is only remembered comes up within these draws.
TEST(PortsTest, NoOtherSocketGetsAClaimedPort) {
  const PortClaim claim(0);
  for (int draw = 0; draw < 50'000; ++draw) ASSERT_NE(any_port(), claim.port()) << "in draw " << draw;
}

TEST(PortsTest, RankZeroCanListenOnAClaimedPort) {
  const PortClaim claim(0);
  ASSERT_TRUE(claim.holds());
  const LauncherListener store("0.0.0.0", claim.port());
  EXPECT_FALSE(LauncherLink::connect_to("127.0.0.1", claim.port()).is_lost());
}

TEST(PortsTest, APortIsClaimedOnceAtATime) {
  int port = 0;
  {
    const PortClaim claim(0);
    port = claim.port();
    EXPECT_FALSE(PortClaim(port).holds());
  }
  EXPECT_TRUE(PortClaim(port).holds());
}

TEST(PortsTest, APortOnWhichAProcessListensCannotBeClaimed) {
  const int port = free_port();
  const LauncherListener other("0.0.0.0", port);
  EXPECT_FALSE(PortClaim(port).holds());
}

}  // namespace
}  // namespace accel::launcher
