#pragma once

/// TCP ports of this machine.
namespace accel::launcher {

/// Whether nobody listens on it now. Thread rule: any thread.
bool is_port_free(int port);

/// A TCP port that nobody listens on now.
int free_port();

}  // namespace accel::launcher
