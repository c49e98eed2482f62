#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reference/recorder/job_reader.hpp"
#include "reference/recorder/job_record.hpp"

/// What the hosts of a job tell each other of their ranks: a small state often, and the whole record when one asks.
///
/// Thread rule: pure, apart from the records that they read.
namespace accel::recorder {

/// The last collectives of a group, for a comparison with those of another host.
struct GroupCalls {
  std::uint64_t first = 0;                 ///< sequence number of the first
  std::vector<std::uint64_t> chains = {};  ///< by call: of all calls up to it; 0: not known
};

struct HostState {
  std::uint64_t progress = 0;  ///< differs if a rank has made a call, begun a wait or ended one
  std::int64_t idle_ms = 0;    ///< since it has differed
  bool waits = false;          ///< a thread waits in a call
  std::string differs = {};    ///< group in which ranks of this host have found that their calls differ; "": none
  bool has_ended = false;      ///< all ranks have returned from their programs
  std::vector<ProcessEnd> ends = {};              ///< by local rank
  std::vector<std::string> process_states = {};   ///< by local rank
  std::map<std::string, GroupCalls> groups = {};  ///< that have members on other hosts, by name
};

HostState state_of_host(const JobRecord& record, std::int64_t idle_ms);
std::string to_json(const HostState& state);
HostState host_state_of_json(std::string_view json);

/// A group whose calls differ between hosts. `hosts`: null where a state is not known.
std::optional<std::string> differing_group(const std::vector<const HostState*>& hosts);

/// What a rank has recorded, without unused parts.
std::string snapshot_of(const JobRecord& record, int world_rank);
/// Writes a snapshot into another host's record. Throws CommError if it is damaged.
void apply_snapshot(std::string_view snapshot, const JobRecord& record, int world_rank);

/// Makes the first collective of the group whose calls differ the verdict of a record of all ranks. False if none of
/// the calls that are still recorded differ.
bool condemn_first_difference(const JobRecord& record, const std::string& group);

}  // namespace accel::recorder
