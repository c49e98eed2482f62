#include "reference/recorder/host_state.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "reference/core/errors.hpp"
#include "reference/recorder/exchange.hpp"
#include "reference/recorder/job_reader.hpp"

namespace accel::recorder {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kComparedCalls = 32;  // enough for calls of all hosts to meet between two states

bool is_of_several_hosts(const RecordedGroup& group, const JobRecord& record) {
  return std::any_of(group.members, group.members + group.size, [&](int rank) { return !record.is_local(rank); });
}

GroupCalls calls_of(const RecordedGroup& group) {
  const auto count = group.num_calls.load(std::memory_order_acquire);
  GroupCalls calls{.first = count - std::min(count, kComparedCalls)};
  for (auto sequence = calls.first; sequence < count; ++sequence) {
    const auto& slot = group.slots[sequence % kCalls];
    const bool is_kept = slot.number.load(std::memory_order_acquire) == sequence + 1;
    const auto chain = slot.chain.load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    calls.chains.push_back(is_kept && slot.number.load(std::memory_order_relaxed) == sequence + 1 ? chain : 0);
  }
  return calls;
}

bool differ(const GroupCalls& a, const GroupCalls& b) {
  const auto end = std::min(a.first + a.chains.size(), b.first + b.chains.size());
  for (auto sequence = std::max(a.first, b.first); sequence < end; ++sequence) {
    const auto chain = a.chains[sequence - a.first], other = b.chains[sequence - b.first];
    if (chain != 0 && other != 0 && chain != other) return true;
  }
  return false;
}

struct Range {
  std::uint64_t offset = 0, bytes = 0;  // in the RankRecord
};

std::uint64_t offset_of(const JobRecord& record, int rank) {
  return reinterpret_cast<std::byte*>(&record.rank(rank)) - record.begin();
}

}  // namespace

HostState state_of_host(const JobRecord& record, std::int64_t idle_ms) {
  HostState state{.progress = progress_of(record), .idle_ms = idle_ms, .has_ended = true};
  for (const int world_rank : record.local_ranks()) {
    const auto& rank = record.rank(world_rank);
    const bool is_lost = record.is_elastic() && has_process_ended(record, world_rank);
    state.has_ended = state.has_ended && (rank.end.load() == RankEnd::kLeft || is_lost);
    state.waits =
        state.waits || rank.gpu_wait.load() != 0 ||
        std::any_of(std::begin(rank.waits), std::end(rank.waits), [](const auto& wait) { return wait.load() != 0; });
    const auto num_groups = std::min<std::uint32_t>(rank.num_groups.load(std::memory_order_acquire), kGroups);
    for (std::uint32_t index = 0; index < num_groups; ++index) {
      const auto& group = rank.groups[index];
      if (!state.groups.contains(group.name) && is_of_several_hosts(group, record))
        state.groups[group.name] = calls_of(group);
    }
  }
  if (const auto& verdict = record.verdict(); record.has_verdict())
    state.differs = record.rank(verdict.finder).groups[verdict.group].name;
  state.ends = ends_of_processes(record);
  for (const int rank : record.local_ranks()) state.process_states.push_back(process_state(record, rank));
  return state;
}

std::string to_json(const HostState& state) {
  Json ends = Json::array(), groups = Json::object();
  for (const auto& end : state.ends) ends.push_back({end.has_ended, end.detail});
  for (const auto& [name, calls] : state.groups) groups[name] = {calls.first, calls.chains};
  return Json{{"progress", state.progress},
              {"idle_ms", state.idle_ms},
              {"waits", state.waits},
              {"differs", state.differs},
              {"has_ended", state.has_ended},
              {"ends", ends},
              {"process_states", state.process_states},
              {"groups", groups}}
      .dump();
}

HostState host_state_of_json(std::string_view text) {
  const auto json = Json::parse(text);
  HostState state{.progress = json["progress"],
                  .idle_ms = json["idle_ms"],
                  .waits = json["waits"],
                  .differs = json["differs"],
                  .has_ended = json["has_ended"],
                  .process_states = json["process_states"]};
  for (const auto& end : json["ends"]) state.ends.push_back({end[0], end[1]});
  for (const auto& [name, calls] : json["groups"].items()) state.groups[name] = {calls[0], calls[1]};
  return state;
}

std::optional<std::string> differing_group(const std::vector<const HostState*>& hosts) {
  std::map<std::string, const GroupCalls*> first;  // by group: the calls of the first host that has it
  for (const auto* const host : hosts) {
    if (host == nullptr) continue;
    if (!host->differs.empty()) return host->differs;
    for (const auto& [name, calls] : host->groups) {
      const auto& [place, is_first] = first.try_emplace(name, &calls);
      if (!is_first && differ(*place->second, calls)) return name;
    }
  }
  return std::nullopt;
}

// The file's holes are unused parts.
std::string snapshot_of(const JobRecord& record, int world_rank) {
  const auto begin = offset_of(record, world_rank);
  const auto end = begin + sizeof(RankRecord);
  std::string snapshot;
  for (auto at = begin; at < end;) {
    const auto data = lseek(record.descriptor(), static_cast<off_t>(at), SEEK_DATA);
    if (data < 0 || static_cast<std::uint64_t>(data) >= end) break;
    const auto hole = lseek(record.descriptor(), data, SEEK_HOLE);
    at = hole < 0 ? end : std::min<std::uint64_t>(hole, end);
    const Range range{static_cast<std::uint64_t>(data) - begin, at - data};
    snapshot.append(reinterpret_cast<const char*>(&range), sizeof range);
    snapshot.append(reinterpret_cast<const char*>(record.begin() + data), range.bytes);
  }
  return snapshot;
}

void apply_snapshot(std::string_view snapshot, const JobRecord& record, int world_rank) {
  auto* const to = record.begin() + offset_of(record, world_rank);
  while (!snapshot.empty()) {
    Range range;
    const bool is_whole = snapshot.size() >= sizeof range;
    if (is_whole) std::memcpy(&range, snapshot.data(), sizeof range);
    snapshot.remove_prefix(std::min(snapshot.size(), sizeof range));
    if (!is_whole || range.bytes > snapshot.size() || range.offset > sizeof(RankRecord) ||
        range.bytes > sizeof(RankRecord) - range.offset)
      throw CommError(fmt::format("the record of rank {}, as another host has sent it, is damaged", world_rank));
    std::memcpy(to + range.offset, snapshot.data(), range.bytes);
    snapshot.remove_prefix(range.bytes);
  }
}

bool condemn_first_difference(const JobRecord& record, const std::string& group) {
  struct Member {
    int rank = 0, index = 0;
    const RecordedGroup* calls = nullptr;
  };
  std::vector<Member> members;
  std::uint64_t first = 0, end = 0;
  for (int rank = 0; rank < record.world_size(); ++rank) {
    const int index = group_index(record.rank(rank), group.c_str());
    if (index < 0) continue;
    const auto& calls = record.rank(rank).groups[index];
    const auto count = calls.num_calls.load();
    end = members.empty() ? count : std::max(end, count);
    first = std::max(first, count - std::min<std::uint64_t>(count, kCalls));
    members.push_back({rank, index, &calls});
  }
  const auto condemn = [&](const Member& member, std::uint64_t sequence) {
    auto& verdict = record.verdict();
    verdict.sequence = sequence;
    verdict.finder = member.rank;
    verdict.group = static_cast<std::uint32_t>(member.index);
    verdict.state = 2;
    return true;
  };
  for (auto sequence = first; sequence < end; ++sequence) {
    const RecordedGroup::Slot* known = nullptr;
    for (const auto& member : members) {
      const auto& slot = member.calls->slots[sequence % kCalls];
      if (slot.number.load() != sequence + 1) continue;
      if (known != nullptr && slot.fingerprint.load() != known->fingerprint.load()) return condemn(member, sequence);
      known = &slot;
    }
    if (!split_mismatches(record, group, sequence).empty()) return condemn(members.front(), sequence);
  }
  return false;
}

}  // namespace accel::recorder
