// Runs a plan round by round on one clock per rank. There is no global clock: a slow rank delays only the ranks
// that exchange messages with it, round after round, as in a real ring.
#include "sim/network/plan_timing.hpp"

#include <algorithm>

namespace accel::sim {
namespace {

bool all_equal(const auto& values) {
  return std::adjacent_find(values.begin(), values.end(), std::not_equal_to<>()) == values.end();
}

double reduce_seconds(const Message& message, const TimingOptions& options) {
  return message.is_reduced ? static_cast<double>(message.bytes) * options.reduce_seconds_per_byte : 0;
}

// Reads the clocks of the previous round and writes `next`, so the order of the messages within a round does
// not matter. A sender is free once its message is sent; a receiver also needs the time to add it.
void run_round(const std::vector<Message>& messages, std::span<const PairCosts> costs, const TimingOptions& options,
               double factor, std::vector<double>& clocks, std::vector<double>& next) {
  next = clocks;
  for (std::size_t index = 0; index < messages.size(); ++index) {
    const auto& message = messages[index];
    if (message.pieces == 0) continue;
    const double start = std::max(clocks[message.from], clocks[message.to]);
    const double sent = start + factor * message_seconds(message, costs[index]);
    next[message.from] = std::max(next[message.from], sent);
    next[message.to] = std::max(next[message.to], sent + factor * reduce_seconds(message, options));
  }
  clocks.swap(next);
}

// Every chunk is in flight in the first round of a ring, so that round contains the slowest message of all rounds.
double slowest_message_seconds(const std::vector<Message>& messages, std::span<const PairCosts> costs,
                               const TimingOptions& options) {
  double slowest = 0;
  for (std::size_t index = 0; index < messages.size(); ++index) {
    if (messages[index].pieces == 0) continue;
    slowest =
        std::max(slowest, message_seconds(messages[index], costs[index]) + reduce_seconds(messages[index], options));
  }
  return slowest;
}

}  // namespace

double message_seconds(const Message& message, const PairCosts& costs) {
  const double turns = message.pieces <= 1 ? 1 : 0.5 * message.pieces;
  const double bytes_seconds = static_cast<double>(message.bytes) * costs.seconds_per_byte;
  return std::max(bytes_seconds, turns * (costs.latency_seconds + bytes_seconds / message.pieces));
}

std::vector<double> run_plan(const CollectivePlan& plan, std::vector<double> clocks, const TimingOptions& options,
                             const CostsOfRound& costs_of) {
  std::vector<Message> messages;
  std::vector<double> next;
  const double factor = plan.repeats * options.time_factor;
  for (const auto& stage : plan.stages) {
    const bool is_ring = stage.pairs == Pairs::kRingDown || stage.pairs == Pairs::kRingUp;
    // The closed form replaces ranks * rounds messages, 16 million on 4,096 ranks, by one multiplication.
    const bool may_use_closed_form =
        is_ring && static_cast<int>(clocks.size()) >= options.closed_form_ranks_min && all_equal(clocks);
    for (int round = 0; round < stage.num_rounds; ++round) {
      stage.messages(round, messages);
      const auto costs = costs_of(stage, round, messages, *std::min_element(clocks.begin(), clocks.end()));
      if (round == 0 && may_use_closed_form && all_equal(costs)) {
        const double seconds = stage.num_rounds * factor * slowest_message_seconds(messages, costs, options);
        for (auto& clock : clocks) clock += seconds;
        break;
      }
      run_round(messages, costs, options, factor, clocks, next);
    }
  }
  return clocks;
}

}  // namespace accel::sim
