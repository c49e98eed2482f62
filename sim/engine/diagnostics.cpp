// Turns the state of blocked ranks and open meetings into the text of a hang report. It runs while other ranks
// may still move (a time-out), so it reads each fact once and tolerates that a missing rank has arrived since.
#include "sim/engine/diagnostics.hpp"

#include <algorithm>

#include "sim/engine/group_state.hpp"

namespace accel::sim {
namespace {

using Calls = std::vector<std::optional<Call>>;

// Groups the members by their call, the largest group first. The sort is stable, so ties keep the order of the ranks.
template <typename Same>
std::vector<std::pair<Call, std::vector<int>>> group_by_call(const Calls& calls, const EngineGroup& group,
                                                             Same&& same) {
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

// One call per thread of the rank that waits.
std::string describe_waits(const std::vector<LastCall>& waits) {
  std::string text;
  for (const auto& wait : waits) text += (text.empty() ? "" : " and in ") + describe(wait);
  return text;
}

std::string at(const std::string& where) { return where.empty() ? "" : fmt::format(" at {}", where); }

// Returns the first collective of the group that ranks called from different lines of the program.
std::optional<Difference> first_divergence(const EngineGroup& group) {
  const auto apart = group.state->collectives.first_divergence();
  if (!apart) return std::nullopt;
  Difference difference{.group = group.name, .sequence = apart->sequence};
  for (const auto& [call, ranks] :
       group_by_call(apart->calls, group, [](auto& a, auto& b) { return same_source_line(a.where, b.where); })) {
    difference.sides.push_back({ranks, describe(call), describe(call.where)});
  }
  return difference;
}

}  // namespace

// Two ranks that differ have no majority: then both are culprits, and the report lists both calls.
Diagnosis diagnose_difference(const Meeting& meeting) {
  const auto& group = meeting.group();
  const auto kinds = group_by_call(meeting.calls(), group, agree);
  const bool tie = kinds[0].second.size() == kinds[1].second.size();
  Diagnosis diagnosis{.kind = Diagnosis::Kind::kDesync};
  name_call(diagnosis, kinds[0].first, group.name, meeting.sequence());
  diagnosis.first_difference = {.group = group.name, .sequence = meeting.sequence()};
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

// Describes a rank by its last call, the only thing that the engine knows about a rank's own code.
std::string Diagnostics::describe_rank(int rank) const {
  const auto [activity, last_call, waits] = states_.state(rank);
  const bool has_called = last_call.op.has_value();
  const auto call = has_called ? describe(last_call) : "";
  const auto after = has_called ? fmt::format("after {}", call) : "before any collective";
  switch (activity) {
    case RankStates::Activity::kWaits: return fmt::format("waits in {}", describe_waits(waits));
    case RankStates::Activity::kHangs: return fmt::format("hangs, {}", after);
    case RankStates::Activity::kHasLeft: return fmt::format("has ended its program, {}", after);
    case RankStates::Activity::kRuns: break;
  }
  // After a failure turns no longer matter: every rank runs freely, so a rank that has not returned is running.
  const bool has_turn = failures_.has_failed() || scheduler_.has_turn(rank);
  return fmt::format("{}, {}", has_turn ? "is running" : "waits for its turn", after);
}

// The first meeting that is added names the diagnosis; others only add their lines to the text.
void Diagnostics::add_missing_ranks(const Meeting& meeting, Diagnosis& diagnosis) const {
  const bool is_first = diagnosis.op.empty();
  if (is_first) name_call(diagnosis, *meeting.any_call(), meeting.group().name, meeting.sequence());
  if (meeting.is_message()) return add_missing_sender(meeting, diagnosis);
  add_missing_members(meeting, diagnosis, is_first);
}

// A receive has no members to list: either a specific sender is missing, or (any source) nobody has sent.
void Diagnostics::add_missing_sender(const Meeting& meeting, Diagnosis& diagnosis) const {
  std::vector<int> waiters;
  for (const auto& wait : states_.waits()) {
    if (wait.meeting == &meeting) waiters.push_back(wait.rank);
  }
  if (waiters.empty()) return;  // the message has arrived in the meantime
  diagnosis.text += fmt::format("\n  {} {}, and ", describe_ranks(waiters), describe_rank(waiters.front()));
  if (meeting.source() < 0) {
    diagnosis.ranks.insert(diagnosis.ranks.end(), waiters.begin(), waiters.end());
    diagnosis.text += "no rank has sent";
  } else {
    const int sender = meeting.group().ranks[meeting.source()];
    diagnosis.ranks.push_back(sender);
    diagnosis.text += fmt::format("rank {} has not sent: it {}", sender, describe_rank(sender));
  }
}

// `is_first` is set for the meeting that most ranks wait for: only it determines where the ranks diverged.
void Diagnostics::add_missing_members(const Meeting& meeting, Diagnosis& diagnosis, bool is_first) const {
  const auto& group = meeting.group();
  const auto& call = *meeting.any_call();
  std::vector<int> arrived, missing;
  for (std::size_t member = 0; member < group.ranks.size(); ++member)
    (meeting.has_arrived(member) ? arrived : missing).push_back(group.ranks[member]);
  diagnosis.ranks.insert(diagnosis.ranks.end(), missing.begin(), missing.end());
  diagnosis.text += fmt::format("\n  {}, {}{}: {} of {} ranks arrived ({})", meeting.name(), describe(call),
                                at(describe(call.where)), arrived.size(), group.ranks.size(), describe_ranks(arrived));
  const auto places = places_of(missing);
  for (const auto& [place, ranks] : places)
    diagnosis.text += fmt::format("\n  missing: {} {}", describe_ranks(ranks), place);
  if (!is_first) return;
  // Calls that agreed but came from different lines show where the ranks diverged; without any, this meeting is
  // the place.
  if (auto apart = first_divergence(group)) {
    diagnosis.text +=
        fmt::format("\n  ranks came from different lines first at #{} of group {}:", apart->sequence, group.name);
    for (const auto& side : apart->sides)
      diagnosis.text += fmt::format("\n    {}: {}{}", describe_ranks(side.ranks), side.call, at(side.where));
    diagnosis.first_difference = std::move(apart);
  } else if (!missing.empty()) {
    diagnosis.first_difference = {.group = group.name,
                                  .sequence = meeting.sequence(),
                                  .sides = {{arrived, describe(call), describe(call.where)}}};
    for (const auto& [place, ranks] : places) diagnosis.first_difference->sides.push_back({ranks, place, ""});
  }
}

// Groups ranks with equal descriptions, so that 4,095 missing ranks take one line.
Diagnostics::Places Diagnostics::places_of(const std::vector<int>& ranks) const {
  Places places;
  for (const int rank : ranks) {
    auto place = describe_rank(rank);
    auto same = std::find_if(places.begin(), places.end(), [&](auto& other) { return other.first == place; });
    if (same == places.end()) same = places.insert(places.end(), {std::move(place), {}});
    same->second.push_back(rank);
  }
  return places;
}

Diagnosis Diagnostics::hang() const {
  // The culprits are the ranks missing from the meeting that most ranks wait for; on a tie, from all such meetings.
  Diagnosis diagnosis{.kind = Diagnosis::Kind::kHang,
                      .text = "hang: every rank is blocked or has ended; none can continue"};
  std::vector<std::pair<const Meeting*, int>> meetings;
  for (const auto& wait : states_.waits()) {
    const Meeting* meeting = wait.meeting;
    if (!meeting->has_group()) continue;  // an injected hang
    add_waiting(wait, diagnosis);
    auto known = std::find_if(meetings.begin(), meetings.end(), [&](auto& other) { return other.first == meeting; });
    if (known == meetings.end()) known = meetings.insert(meetings.end(), {meeting, 0});
    ++known->second;
  }
  std::stable_sort(meetings.begin(), meetings.end(), [](auto& a, auto& b) { return a.second > b.second; });
  for (const auto& [meeting, waiters] : meetings) {
    auto culprits = diagnosis.ranks;
    add_missing_ranks(*meeting, diagnosis);
    if (waiters < meetings.front().second) diagnosis.ranks = std::move(culprits);
  }
  std::sort(diagnosis.ranks.begin(), diagnosis.ranks.end());
  diagnosis.ranks.erase(std::unique(diagnosis.ranks.begin(), diagnosis.ranks.end()), diagnosis.ranks.end());
  return diagnosis;
}

void Diagnostics::add_waiting(const RankWait& wait, Diagnosis& diagnosis) {
  const auto& meeting = *wait.meeting;
  diagnosis.waiting.push_back({wait.rank, std::string(name_of(wait.call.op.value())), meeting.group().name,
                               meeting.sequence(), describe(wait.call.where)});
}

Diagnosis Diagnostics::timeout(const Meeting& meeting) const {
  Diagnosis diagnosis{.kind = Diagnosis::Kind::kTimeout};
  diagnosis.text = fmt::format("timed out after {} ms", timeout_.count());
  for (const auto& wait : states_.waits()) {
    if (wait.meeting == &meeting) add_waiting(wait, diagnosis);
  }
  add_missing_ranks(meeting, diagnosis);
  return diagnosis;
}

// No meeting can be late here: the other ranks have not made their calls because they wait for their turns.
Diagnosis Diagnostics::stalled_turn(int rank) const {
  const auto text = fmt::format("timed out after {} ms\n  rank {} does not end its turn: it {}", timeout_.count(), rank,
                                describe_rank(rank));
  return {.kind = Diagnosis::Kind::kTimeout, .ranks = {rank}, .text = text};
}

}  // namespace accel::sim
