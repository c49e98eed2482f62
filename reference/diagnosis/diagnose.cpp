// Turns the state of a job into the text of a hang report.
#include "reference/diagnosis/diagnose.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace accel {
namespace {

using Calls = std::vector<std::optional<Call>>;
using Places = std::vector<std::pair<std::string, std::vector<int>>>;  // a description, and the ranks that it fits

// Groups the members that have called by their call, the largest group first. The sort is stable, so ties keep the
// order of the ranks.
template <typename Same>
std::vector<std::pair<Call, std::vector<int>>> group_by_call(const Calls& calls, const std::vector<int>& members,
                                                             Same&& same) {
  std::vector<std::pair<Call, std::vector<int>>> kinds;
  for (std::size_t member = 0; member < calls.size(); ++member) {
    if (!calls[member]) continue;
    auto kind =
        std::find_if(kinds.begin(), kinds.end(), [&](auto& other) { return same(other.first, *calls[member]); });
    if (kind == kinds.end()) kind = kinds.insert(kinds.end(), {*calls[member], {}});
    kind->second.push_back(members[member]);
  }
  std::stable_sort(kinds.begin(), kinds.end(), [](auto& a, auto& b) { return a.second.size() > b.second.size(); });
  return kinds;
}

std::string at(const std::string& where) { return where.empty() ? "" : fmt::format(" at {}", where); }

const Call* any_call(const OpenCall& open) {
  const auto called =
      std::find_if(open.calls.begin(), open.calls.end(), [](const auto& call) { return call.has_value(); });
  return called == open.calls.end() ? nullptr : &**called;
}

// E.g. "all_reduce #17 of group world".
std::string name_of(const OpenCall& open) {
  const auto* call = any_call(open);
  const auto title = call == nullptr ? std::string("collective") : std::string(name_of(call->op));
  return fmt::format("{} #{} of group {}", title, open.sequence, open.group);
}

// One call per thread of the rank that waits.
std::string describe_waits(const std::vector<CallPlace>& waits) {
  std::string text;
  for (const auto& wait : waits) text += (text.empty() ? "" : " and in ") + describe(wait);
  return text;
}

// Groups ranks with equal descriptions, so that 4,095 missing ranks take one line.
Places places_of(const JobState& job, const std::vector<int>& ranks) {
  Places places;
  for (const int rank : ranks) {
    auto place = describe(job.ranks[rank]);
    auto same = std::find_if(places.begin(), places.end(), [&](auto& other) { return other.first == place; });
    if (same == places.end()) same = places.insert(places.end(), {std::move(place), {}});
    same->second.push_back(rank);
  }
  return places;
}

// Writes the diagnosis of one state.
class Writer {
 public:
  Writer(const JobState& job, Diagnosis::Kind kind, std::string headline) : job_(job) {
    diagnosis_.kind = kind;
    diagnosis_.text = std::move(headline);
  }

  // The first call that is added names the diagnosis; others only add their lines to the text.
  void add(const OpenCall& open, bool adds_culprits) {
    const bool is_first = diagnosis_.op.empty();
    auto culprits = diagnosis_.ranks;
    if (const auto* call = any_call(open); is_first && call != nullptr)
      name_call(diagnosis_, *call, open.group, open.sequence);
    if (open.is_message)
      add_missing_end(open);
    else
      add_missing_members(open, is_first);
    if (!adds_culprits) diagnosis_.ranks = std::move(culprits);
  }

  void add_waiting(int rank, const CallPlace& wait) {
    diagnosis_.waiting.push_back({rank, std::string(accel::name_of(wait.op)), wait.group,
                                  static_cast<std::uint64_t>(wait.sequence), describe(wait.where)});
  }

  Diagnosis finish() {
    auto& ranks = diagnosis_.ranks;
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    return std::move(diagnosis_);
  }

 private:
  [[nodiscard]] std::string place_of(int rank) const { return describe(job_.ranks[rank]); }

  // A message has no members to list: its other end is missing, or (any source) nobody has sent.
  void add_missing_end(const OpenCall& open) {
    if (open.waiters.empty()) return;  // the message has arrived in the meantime
    diagnosis_.text += fmt::format("\n  {} {}, and ", describe_ranks(open.waiters), place_of(open.waiters.front()));
    if (open.peer < 0) {
      diagnosis_.ranks.insert(diagnosis_.ranks.end(), open.waiters.begin(), open.waiters.end());
      diagnosis_.text += "no rank has sent";
    } else {
      const auto* call = any_call(open);
      const bool sends = call != nullptr && call->op == Collective::kSend;
      diagnosis_.ranks.push_back(open.peer);
      diagnosis_.text +=
          fmt::format("rank {} has not {}: it {}", open.peer, sends ? "received" : "sent", place_of(open.peer));
    }
  }

  // `is_first` is set for the call that most ranks wait in: only it determines where the ranks diverged.
  void add_missing_members(const OpenCall& open, bool is_first) {
    const auto* call = any_call(open);
    if (call == nullptr) return;
    std::vector<int> arrived, missing;
    for (std::size_t member = 0; member < open.members.size(); ++member)
      (open.calls[member] ? arrived : missing).push_back(open.members[member]);
    diagnosis_.ranks.insert(diagnosis_.ranks.end(), missing.begin(), missing.end());
    diagnosis_.text +=
        fmt::format("\n  {}, {}{}: {} of {} ranks arrived ({})", name_of(open), describe(*call),
                    at(describe(call->where)), arrived.size(), open.members.size(), describe_ranks(arrived));
    const auto places = places_of(job_, missing);
    for (const auto& [place, ranks] : places)
      diagnosis_.text += fmt::format("\n  missing: {} {}", describe_ranks(ranks), place);
    if (is_first) add_first_difference(open, *call, arrived, places);
  }

  // Calls that agreed but came from different lines show where the ranks diverged; without any, this call is the place.
  void add_first_difference(const OpenCall& open, const Call& call, const std::vector<int>& arrived,
                            const Places& missing) {
    if (const auto apart = job_.lines_apart.find(open.group); apart != job_.lines_apart.end()) {
      Difference difference{.group = open.group, .sequence = apart->second.sequence};
      diagnosis_.text +=
          fmt::format("\n  ranks came from different lines first at #{} of group {}:", difference.sequence, open.group);
      for (const auto& [side, ranks] : group_by_call(apart->second.calls, open.members, [](auto& a, auto& b) {
             return same_source_line(a.where, b.where);
           })) {
        difference.sides.push_back({ranks, describe(side), describe(side.where)});
        diagnosis_.text +=
            fmt::format("\n    {}: {}{}", describe_ranks(ranks), describe(side), at(describe(side.where)));
      }
      diagnosis_.first_difference = std::move(difference);
    } else if (!missing.empty()) {
      diagnosis_.first_difference = {
          .group = open.group, .sequence = open.sequence, .sides = {{arrived, describe(call), describe(call.where)}}};
      for (const auto& [place, ranks] : missing) diagnosis_.first_difference->sides.push_back({ranks, place, ""});
    }
  }

  const JobState& job_;
  Diagnosis diagnosis_;
};

bool waits_in(const CallPlace& wait, const OpenCall& open) {
  return wait.group == open.group && wait.sequence == static_cast<std::int64_t>(open.sequence) &&
         (wait.peer != kNoPeer) == open.is_message;
}

}  // namespace

// Collectives are counted per group, messages per pair of ranks; the text says which, so that "#3" is not ambiguous.
std::string describe(const CallPlace& place) {
  const auto line = describe(place.where);
  const auto in_brackets = line.empty() ? "" : fmt::format(" ({})", line);
  if (place.peer == kNoPeer)
    return fmt::format("{} #{} of group {}{}", name_of(place.op), place.sequence, place.group, in_brackets);
  const auto other = place.peer == kAnyPeer ? std::string("any rank") : fmt::format("rank {}", place.peer);
  return fmt::format("{} #{} {} {} of group {}{}", name_of(place.op), place.sequence,
                     place.op == Collective::kSend ? "to" : "from", other, place.group, in_brackets);
}

// By the rank's last call, the only thing that is known of its own code.
std::string describe(const RankState& rank) {
  const auto after = rank.last_call ? fmt::format("after {}", describe(*rank.last_call)) : "before any collective";
  const auto detail = rank.detail.empty() ? "" : fmt::format("; {}", rank.detail);
  switch (rank.activity) {
    case Activity::kWaits: return fmt::format("waits in {}{}", describe_waits(rank.waits), detail);
    case Activity::kHangs: return fmt::format("hangs, {}{}", after, detail);
    case Activity::kHasLeft: return fmt::format("has ended its program, {}{}", after, detail);
    case Activity::kRuns: return fmt::format("is running, {}{}", after, detail);
    case Activity::kIsRemote: return "is on another machine";
    case Activity::kWaitsForTurn: return fmt::format("waits for its turn, {}{}", after, detail);
  }
  throw InternalError("unknown activity of a rank");
}

std::string describe(const JobState& job) {
  std::vector<int> ranks(job.ranks.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  std::string text;
  for (const auto& [place, of] : places_of(job, ranks))
    text += fmt::format("{}{}: {}", text.empty() ? "" : "\n", describe_ranks(of), place);
  return text;
}

// Two ranks that differ have no majority: then both are culprits, and the report lists both calls.
Diagnosis diagnose_difference(const OpenCall& open) {
  const auto kinds = group_by_call(open.calls, open.members, agree);
  const bool tie = kinds.size() > 1 && kinds[0].second.size() == kinds[1].second.size();
  Diagnosis diagnosis{.kind = Diagnosis::Kind::kDesync};
  if (!kinds.empty()) name_call(diagnosis, kinds[0].first, open.group, open.sequence);
  diagnosis.first_difference = {.group = open.group, .sequence = open.sequence};
  diagnosis.text = fmt::format("{}: the ranks' calls differ; expected one call, equal on every rank", name_of(open));
  // Only where they differ in it: the simulator has one transport for all tensors.
  const bool names_places = std::any_of(
      kinds.begin(), kinds.end(), [&](auto& kind) { return kind.first.is_on_gpu != kinds.front().first.is_on_gpu; });
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    const auto& [call, ranks] = kinds[kind];
    const auto text = describe(call) + (!names_places ? "" : call.is_on_gpu ? " on a GPU" : " on the CPU");
    diagnosis.text += fmt::format("\n  {}: {}{}", describe_ranks(ranks), text, at(describe(call.where)));
    diagnosis.first_difference->sides.push_back({ranks, text, describe(call.where)});
    if (kind > 0 || tie) diagnosis.ranks.insert(diagnosis.ranks.end(), ranks.begin(), ranks.end());
  }
  std::sort(diagnosis.ranks.begin(), diagnosis.ranks.end());
  return diagnosis;
}

Diagnosis diagnose_call(const Call& call, const std::string& group, std::uint64_t sequence, std::vector<int> ranks,
                        const std::string& reason) {
  Diagnosis diagnosis{.kind = Diagnosis::Kind::kDesync, .ranks = std::move(ranks)};
  name_call(diagnosis, call, group, sequence);
  diagnosis.text =
      fmt::format("{} #{} of group {}{}: {}", name_of(call.op), sequence, group, at(describe(call.where)), reason);
  return diagnosis;
}

Diagnosis diagnose_message(const Call& received, const std::string& group, std::uint64_t sequence, int receiver,
                           const MessageEnd& from, const MessageEnd& to) {
  const auto reason = fmt::format(
      "{} elements of {} were sent, but the tensor of rank {} has {} of {}; expected equal sizes and dtypes",
      from.elements, from.dtype, receiver, to.elements, to.dtype);
  return diagnose_call(received, group, sequence, {receiver}, reason);
}

// Lists every mismatch: the pattern usually shows which rank's splits are wrong. A member with wrong splits mismatches
// with several peers and stands out; with a single mismatch both sides are named.
Diagnosis diagnose_splits(const OpenCall& open, const std::vector<SplitMismatch>& mismatches) {
  std::vector<int> counts(open.members.size());
  std::string reason = "input and output splits differ; expected equal splits on both sides:";
  for (const auto& [from, to, sent, expected] : mismatches) {
    ++counts[from];
    if (to != from) ++counts[to];
    reason += fmt::format("\n  rank {} sends {} to rank {}, which expects {}", open.members[from], sent,
                          open.members[to], expected);
  }
  const auto most = std::max_element(counts.begin(), counts.end());
  std::vector<int> culprits;
  for (std::size_t member = 0; member < counts.size(); ++member) {
    if (counts[member] == *most) culprits.push_back(open.members[member]);
  }
  std::sort(culprits.begin(), culprits.end());
  const auto& call = open.calls[most - counts.begin()];
  return diagnose_call(call ? *call : *any_call(open), open.group, open.sequence, std::move(culprits), reason);
}

Diagnosis diagnose_hang(const JobState& job, std::string headline) {
  // The culprits are the ranks missing from the call that most ranks wait in; on a tie, from all such calls.
  Writer writer(job, Diagnosis::Kind::kHang, std::move(headline));
  for (std::size_t rank = 0; rank < job.ranks.size(); ++rank) {
    for (const auto& wait : job.ranks[rank].waits) writer.add_waiting(static_cast<int>(rank), wait);
  }
  std::vector<const OpenCall*> calls;
  for (const auto& open : job.open_calls) calls.push_back(&open);
  std::stable_sort(calls.begin(), calls.end(), [](auto* a, auto* b) { return a->waiters.size() > b->waiters.size(); });
  for (const auto* open : calls)
    writer.add(*open, /*adds_culprits=*/open->waiters.size() == calls.front()->waiters.size());
  return writer.finish();
}

Diagnosis diagnose_late_call(const JobState& job, std::size_t open_call, std::string headline) {
  const auto& open = job.open_calls[open_call];
  Writer writer(job, Diagnosis::Kind::kTimeout, std::move(headline));
  for (const int rank : open.waiters) {
    for (const auto& wait : job.ranks[rank].waits) {
      if (waits_in(wait, open)) writer.add_waiting(rank, wait);
    }
  }
  writer.add(open, /*adds_culprits=*/true);
  return writer.finish();
}

}  // namespace accel
