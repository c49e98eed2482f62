// Why nobody can go on: found at the moment when the last running rank blocks or leaves, or when a deadline passes.
#include <algorithm>

#include "sim/engine/world.hpp"

namespace accel::sim {
namespace {

using Calls = std::vector<std::optional<Call>>;

// Which members called what, the majority first.
template <typename Same>
std::vector<std::pair<Call, std::vector<int>>> kinds_of(const Calls& calls, const Group& group, Same&& same) {
  std::vector<std::pair<Call, std::vector<int>>> kinds;
  for (std::size_t member = 0; member < calls.size(); ++member) {
    auto kind =
        std::find_if(kinds.begin(), kinds.end(), [&](auto& other) { return same(other.first, *calls[member]); });
    if (kind == kinds.end()) kind = kinds.insert(kinds.end(), {*calls[member], {}});
    kind->second.push_back(group.ranks[member]);
  }
  std::stable_sort(kinds.begin(), kinds.end(), [](auto& a, auto& b) { return a.second.size() > b.second.size(); });
  return kinds;
}

std::string at(const std::string& where) { return where.empty() ? "" : fmt::format(" at {}", where); }

}  // namespace

Diagnosis World::diagnose_difference(const Meeting& meeting) {
  const auto kinds = kinds_of(meeting.calls_, *meeting.group_, agree);
  const bool tie = kinds[0].second.size() == kinds[1].second.size();
  Diagnosis diagnosis{.kind = Diagnosis::Kind::kDesync};
  name_call(diagnosis, kinds[0].first, meeting.group_->name, meeting.sequence_);
  diagnosis.first_difference = {.group = meeting.group_->name, .sequence = meeting.sequence_};
  diagnosis.text = fmt::format("{}: the ranks' calls differ; expected one call, equal on every rank", meeting.name());
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    const auto& [call, ranks] = kinds[kind];
    diagnosis.text += fmt::format("\n  {}: {}{}", describe_ranks(ranks), describe(call), at(describe(call.where)));
    diagnosis.first_difference->sides.push_back({ranks, describe(call), describe(call.where)});
    if (kind > 0 || tie) diagnosis.ranks.insert(diagnosis.ranks.end(), ranks.begin(), ranks.end());
  }
  std::sort(diagnosis.ranks.begin(), diagnosis.ranks.end());
  return diagnosis;
}

std::vector<std::pair<int, Meeting*>> World::blocked_ranks() {
  std::vector<std::pair<int, Meeting*>> blocked;
  for (int rank = 0; rank < num_ranks(); ++rank) {
    const MutexLock lock(ranks_[rank].mutex);
    if (ranks_[rank].blocked_on != nullptr) blocked.emplace_back(rank, ranks_[rank].blocked_on);
  }
  return blocked;
}

std::string World::whereabouts(int rank) {
  const MutexLock lock(ranks_[rank].mutex);
  const auto& last = ranks_[rank].last;
  if (ranks_[rank].blocked_on != nullptr && ranks_[rank].blocked_on->group_ != nullptr)
    return fmt::format("waits in {}", describe(last));
  const auto after = last.op ? fmt::format("after {}", describe(last)) : std::string("before any collective");
  if (ranks_[rank].blocked_on != nullptr) return fmt::format("hangs, {}", after);
  if (ranks_[rank].left) return fmt::format("has ended its program, {}", after);
  const bool has_turn = !baton_ || has_failed_ || baton_->holder().rank == rank;
  return fmt::format("{}, {}", has_turn ? "is running" : "waits for its turn", after);
}

void World::describe_absence(const Meeting& meeting, Diagnosis& diagnosis) {
  auto& group = *meeting.group_;
  const auto* call = meeting.any_call();
  const bool is_first = diagnosis.op.empty();
  if (is_first) name_call(diagnosis, *call, group.name, meeting.sequence_);
  std::vector<int> waiters;
  for (const auto& [rank, blocked_on] : blocked_ranks()) {
    if (blocked_on == &meeting) waiters.push_back(rank);
  }
  if (meeting.is_message_) {
    if (waiters.empty()) return;  // it came meanwhile
    diagnosis.text += fmt::format("\n  {} {}, and ", describe_ranks(waiters), whereabouts(waiters.front()));
    if (meeting.source_ < 0) {
      diagnosis.ranks.insert(diagnosis.ranks.end(), waiters.begin(), waiters.end());
      diagnosis.text += "nobody has sent";
    } else {
      const int sender = group.ranks[meeting.source_];
      diagnosis.ranks.push_back(sender);
      diagnosis.text += fmt::format("rank {} has not sent: it {}", sender, whereabouts(sender));
    }
    return;
  }
  std::vector<int> arrived, missing;
  for (std::size_t member = 0; member < group.ranks.size(); ++member) {
    (meeting.has_arrived_[member].load(std::memory_order_acquire) ? arrived : missing).push_back(group.ranks[member]);
  }
  diagnosis.ranks.insert(diagnosis.ranks.end(), missing.begin(), missing.end());
  diagnosis.text += fmt::format("\n  {}, {}{}: {} of {} ranks arrived ({})", meeting.name(), describe(*call),
                                at(describe(call->where)), arrived.size(), group.ranks.size(), describe_ranks(arrived));
  std::vector<std::pair<std::string, std::vector<int>>> places;
  for (const int rank : missing) {
    auto place = whereabouts(rank);
    auto same = std::find_if(places.begin(), places.end(), [&](auto& other) { return other.first == place; });
    if (same == places.end()) same = places.insert(places.end(), {std::move(place), {}});
    same->second.push_back(rank);
  }
  for (const auto& [place, ranks] : places)
    diagnosis.text += fmt::format("\n  missing: {} {}", describe_ranks(ranks), place);
  if (!is_first) return;
  // Calls that agreed, from different lines of the program, say where ranks went apart; else this meeting is the place.
  if (auto apart = first_apart(group)) {
    diagnosis.text +=
        fmt::format("\n  ranks came from different lines first at #{} of group {}:", apart->sequence, group.name);
    for (const auto& side : apart->sides)
      diagnosis.text += fmt::format("\n    {}: {}{}", describe_ranks(side.ranks), side.call, at(side.where));
    diagnosis.first_difference = std::move(apart);
  } else if (!missing.empty()) {
    diagnosis.first_difference = {.group = group.name,
                                  .sequence = meeting.sequence_,
                                  .sides = {{arrived, describe(*call), describe(call->where)}}};
    for (const auto& [place, ranks] : places) diagnosis.first_difference->sides.push_back({ranks, place, ""});
  }
}

std::optional<Difference> World::first_apart(Group& group) {
  const MutexLock lock(group.mutex);
  if (!group.first_apart) return std::nullopt;
  Difference difference{.group = group.name, .sequence = group.first_apart->sequence};
  for (const auto& [call, ranks] :
       kinds_of(group.first_apart->calls, group, [](auto& a, auto& b) { return same_place(a.where, b.where); })) {
    difference.sides.push_back({ranks, describe(call), describe(call.where)});
  }
  return difference;
}

Diagnosis World::diagnose_hang() {
  // The culprits are those missing from the meeting that most ranks wait for; on a tie, from all of those.
  Diagnosis diagnosis{.kind = Diagnosis::Kind::kHang,
                      .text = "hang: every rank is blocked or has ended, none can go on"};
  std::vector<std::pair<const Meeting*, int>> meetings;
  for (const auto& [rank, blocked_on] : blocked_ranks()) {
    if (blocked_on->group_ == nullptr) continue;  // an injected hang
    add_waiting(rank, *blocked_on, diagnosis);
    auto known = std::find_if(meetings.begin(), meetings.end(), [&](auto& other) { return other.first == blocked_on; });
    if (known == meetings.end()) known = meetings.insert(meetings.end(), {blocked_on, 0});
    ++known->second;
  }
  std::stable_sort(meetings.begin(), meetings.end(), [](auto& a, auto& b) { return a.second > b.second; });
  for (const auto& [meeting, waiters] : meetings) {
    auto culprits = diagnosis.ranks;
    describe_absence(*meeting, diagnosis);
    if (waiters < meetings.front().second) diagnosis.ranks = std::move(culprits);
  }
  std::sort(diagnosis.ranks.begin(), diagnosis.ranks.end());
  diagnosis.ranks.erase(std::unique(diagnosis.ranks.begin(), diagnosis.ranks.end()), diagnosis.ranks.end());
  return diagnosis;
}

void World::add_waiting(int rank, const Meeting& meeting, Diagnosis& diagnosis) {
  const MutexLock lock(ranks_[rank].mutex);
  diagnosis.waiting.push_back({rank, std::string(name_of(ranks_[rank].last.op.value())), meeting.group_->name,
                               meeting.sequence_, describe(ranks_[rank].last.where)});
}

Diagnosis World::diagnose_timeout(const Meeting& meeting) {
  Diagnosis diagnosis{.kind = Diagnosis::Kind::kTimeout};
  diagnosis.text = fmt::format("timed out after {} ms", options_.timeout.count());
  for (const auto& [rank, blocked_on] : blocked_ranks()) {
    if (blocked_on == &meeting) add_waiting(rank, meeting, diagnosis);
  }
  describe_absence(meeting, diagnosis);
  return diagnosis;
}

// No meeting is open that could be late: the others wait for their turns.
Diagnosis World::diagnose_endless_turn(int rank) {
  const auto text = fmt::format("timed out after {} ms\n  rank {} does not end its turn: it {}",
                                options_.timeout.count(), rank, whereabouts(rank));
  return {.kind = Diagnosis::Kind::kTimeout, .ranks = {rank}, .text = text};
}

}  // namespace accel::sim
