#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "backends/gloo/transport.hpp"
#include "reference/config/environment.hpp"
#include "reference/state/rank_context.hpp"

namespace c10d {
class Store;
}

/// Ranks over PyTorch's own ProcessGroupGloo. Thread rule: each rank makes its own.
namespace accel::gloo {

struct GlooOptions {
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  std::string hostname = "127.0.0.1";  ///< where this rank listens; GLOO_SOCKET_IFNAME beats it
  Transport transport = transport_from_environment();
};

/// This machine's address on the way to `host`: where other machines' ranks reach this one. Throws CommError if there
/// is no way.
std::string address_towards(const std::string& host);

/// Joins a group through a store that all its ranks share (a HashStore among threads, a TCPStore among processes).
/// Returns when all have joined. Throws CommError if they do not within the timeout. The process ignores SIGPIPE from
/// then on, unless it handles it: a write to a rank that has gone throws.
Group make_group(const std::string& name, c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                 const GlooOptions& options);

/// A rank of a job whose place comes from a launcher: rank 0 serves the TCPStore, unless torchrun's agent does.
/// Throws ConfigError if the port is taken, CommError if the others do not come within the timeout.
std::unique_ptr<RankContext> make_rank(const LaunchEnvironment& launch, const GlooOptions& options);

/// The TCPStore of a job, and the name under which its next attempt keeps its keys.
c10::intrusive_ptr<c10d::Store> connect_store(const LaunchEnvironment& launch, std::chrono::milliseconds timeout);

}  // namespace accel::gloo
