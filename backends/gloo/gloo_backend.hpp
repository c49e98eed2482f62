#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/gloo/interruptible_backend.hpp"
#include "backends/gloo/transport.hpp"
#include "reference/config/environment.hpp"
#include "reference/state/rank_context.hpp"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d
namespace accel::recorder {
class GroupRecorder;
class RankRecorder;
}  // namespace accel::recorder

/// Ranks over PyTorch's ProcessGroupGloo. Thread rule: each rank creates its own groups.
namespace accel::gloo {

struct GlooOptions {
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  std::string hostname = "127.0.0.1";  ///< address on which this rank listens; GLOO_SOCKET_IFNAME overrides it
  Transport transport = transport_from_environment();
  std::shared_ptr<recorder::RankRecorder> recorder = {};  ///< of this rank's calls; null: they are not recorded
  std::vector<int> members = {};      ///< of the group: world ranks of the job, by group rank; empty: all
  int num_elastic_runs = 0;           ///< of the job so far
  int job_size = 0;                   ///< ranks with which the job has started
  std::string members_file = {};      ///< of elastic trainings, see LaunchEnvironment; empty: none
  int elastic_restarts = 0;           ///< of this rank: above 0 until it has joined the others
  WaitStateFunction wait_state = {};  ///< of a group of an elastic training
};

/// Returns the address of this machine's interface on the route to `host`, where ranks on other machines can reach it.
/// Throws CommError if there is no route, or if the name is unknown after `patience`: that of a pod of Kubernetes is
/// known once it runs.
std::string local_address_for(const std::string& host, std::chrono::milliseconds patience = {});

/// Joins only the Gloo part of a group, whose calls are not recorded. As `make_group`.
c10::intrusive_ptr<c10d::Backend> make_backend(const std::string& name, c10::intrusive_ptr<c10d::Store> store, int rank,
                                               int size, const GlooOptions& options);

/// Where the rank records the calls of a group; nothing if it does not.
std::optional<recorder::GroupRecorder> group_recorder(const std::string& name, int size, const GlooOptions& options);

/// Joins a group through a store that all its ranks share: a HashStore between threads, a TCPStore between processes.
/// Collective; returns when all ranks have joined. Throws CommError if they do not join within the timeout. Makes the
/// process ignore SIGPIPE unless it handles the signal, so that a write to a rank that has exited throws.
Group make_group(const std::string& name, c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                 const GlooOptions& options);

using MakeGroup = std::function<Group(const std::string& name, const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                      int size, const GlooOptions& options)>;
/// Makes the functions of the context that create groups: groups of the world's ranks, which have the world ranks
/// `options.members` of the job. `prefix`: of the names of groups, which no other world of the job has.
void offer_groups(RankContext& context, c10::intrusive_ptr<c10d::Store> store, const GlooOptions& options,
                  const MakeGroup& make, const std::string& prefix);
/// Joins the world through `make`, which also makes the later groups of the rank. Collective.
void join_groups(RankContext& context, c10::intrusive_ptr<c10d::Store> store, const GlooOptions& options,
                 const MakeGroup& make);

/// Creates the rank of a job whose place comes from a launcher, and joins the world group. Collective. Rank 0 serves
/// the TCPStore unless torchrun's agent does. Throws ConfigError if the port is in use, and CommError if the other
/// ranks do not join within the timeout. `make`: for groups with another backend for GPUs; then `prepare` completes the
/// context before the first group.
std::unique_ptr<RankContext> make_rank(const LaunchEnvironment& of_launcher, const GlooOptions& options,
                                       const MakeGroup& make = make_group,
                                       const std::function<void(RankContext&)>& prepare = {});

}  // namespace accel::gloo
