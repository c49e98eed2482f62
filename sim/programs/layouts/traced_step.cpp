#include "sim/programs/layouts/traced_step.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "reference/core/errors.hpp"

namespace accel::programs {
namespace {

using sim::TraceEvent;

class Replay {
 public:
  Replay(const sim::RankTrace& trace, sim::Network& network)
      : trace_(trace), network_(network), clocks_(trace.num_ranks) {
    network_.set_ranks(trace.num_ranks);
    for (const auto& ranks : trace.groups) groups_.push_back(groups_like(ranks, trace.num_ranks));
  }

  TracedStep run(std::size_t begin, std::size_t end) {
    TracedStep step;
    for (auto index = begin; index < end; ++index) {
      const auto& event = trace_.events[index];
      if (event.kind == TraceEvent::Kind::kCompute) {
        step.compute_seconds += event.seconds;
        for (auto& clock : clocks_) clock += event.seconds;
      }
      if (event.kind == TraceEvent::Kind::kCall) call(index, event);
      if (event.kind == TraceEvent::Kind::kWait && *event.other >= begin) wait(*event.other);
    }
    step.seconds = *std::max_element(clocks_.begin(), clocks_.end());
    return step;
  }

 private:
  static bool is_message(const TraceEvent& event) {
    return event.op == Collective::kSend || event.op == Collective::kRecv;
  }

  std::uint64_t number_of(int group, const std::vector<int>& ranks) {
    return numbers_.try_emplace({group, ranks}, numbers_.size()).first->second;
  }

  void call(std::size_t index, const TraceEvent& event) {
    called_[index] = clocks_;
    if (is_message(event)) return;
    auto& ends = ends_[index];
    ends.resize(clocks_.size());
    for (const auto& ranks : groups_[event.group]) {
      std::vector<double> ready;
      for (const auto rank : ranks) ready.push_back(clocks_[rank]);
      const auto finished = network_.finish_times(number_of(event.group, ranks),
                                                  {.op = event.op,
                                                   .bytes = event.bytes,
                                                   .element_bytes = event.element_bytes,
                                                   .ranks = &ranks,
                                                   .root = event.root},
                                                  ready);
      for (std::size_t member = 0; member < ranks.size(); ++member) ends[ranks[member]] = finished[member];
    }
  }

  // A send completes at once. A message starts when both its ends are ready, as in TransferTimes::set_of_message.
  void receive(std::size_t index, const TraceEvent& event) {
    ensure(event.other && called_.contains(*event.other), "a rank waits for a message that it never sent");
    auto& ends = ends_[index];
    ends.resize(clocks_.size());
    for (const auto& ranks : groups_[event.group]) {
      for (std::size_t member = 0; member < ranks.size(); ++member) {
        const std::vector<int> pair{ranks[(member + event.source) % ranks.size()], ranks[member]};
        const double ready[] = {called_[*event.other][pair[0]], called_[index][pair[1]]};
        ends[pair[1]] =
            network_
                .finish_times(
                    number_of(event.group, pair),
                    {.op = event.op, .bytes = event.bytes, .element_bytes = event.element_bytes, .ranks = &pair}, ready)
                .back();
      }
    }
  }

  void wait(std::size_t index) {
    const auto& event = trace_.events[index];
    if (event.op == Collective::kSend) return;
    if (event.op == Collective::kRecv && !ends_.contains(index)) receive(index, event);
    for (std::size_t rank = 0; rank < clocks_.size(); ++rank)
      clocks_[rank] = std::max(clocks_[rank], ends_.at(index)[rank]);
  }

  const sim::RankTrace& trace_;
  sim::Network& network_;
  std::vector<double> clocks_;  // by rank
  std::vector<std::vector<std::vector<int>>> groups_;
  std::map<std::pair<int, std::vector<int>>, std::uint64_t> numbers_;  // the network knows groups by number
  std::map<std::size_t, std::vector<double>> called_, ends_;           // by event and rank
};

}  // namespace

TracedStep time_of_step(const sim::RankTrace& trace, sim::Network& network) {
  std::vector<std::size_t> updates;
  for (std::size_t index = 0; index < trace.events.size(); ++index) {
    if (trace.events[index].kind == TraceEvent::Kind::kUpdate) updates.push_back(index);
  }
  check_argument(updates.size() >= 2, "time_of_step: the trace has {} optimizer steps; expected at least 2",
                 updates.size());
  return Replay(trace, network).run(*(updates.end() - 2) + 1, updates.back());
}

// A group of a row-major mesh is the same offsets from its first rank everywhere.
std::vector<std::vector<int>> groups_like(const std::vector<int>& ranks, int num_ranks) {
  std::vector<std::vector<int>> groups;
  std::vector<bool> is_member(num_ranks);
  for (int first = 0; first < num_ranks; ++first) {
    if (is_member[first]) continue;
    auto& group = groups.emplace_back();
    for (const auto rank : ranks) {
      const auto own = first + rank - ranks.front();
      check_argument(own < num_ranks && !is_member[own],
                     "groups_like: ranks {} and their translations do not divide {} ranks", fmt::join(ranks, ", "),
                     num_ranks);
      is_member[own] = true;
      group.push_back(own);
    }
  }
  return groups;
}

}  // namespace accel::programs
