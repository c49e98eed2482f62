#pragma once

#include <string>

/// Listens for TCP connections on one address of this machine, not on all, where that is possible.
namespace accel::sockets {

/// Returns a non-blocking socket that listens on `port` of the interface that `host` names, or -1 with the reason in
/// errno. The owner closes it.
///
/// `host` is the name or address by which others reach this machine. The socket listens on every interface if that is
/// no address of this machine, as with a load balancer, or if a name resolves to a loopback address here, as Debian
/// configures the machine's own name: other machines then resolve it to another address. `localhost` is the loopback
/// interface. Thread rule: any thread. May wait for name resolution.
int listen_on(const std::string& host, int port);

}  // namespace accel::sockets
